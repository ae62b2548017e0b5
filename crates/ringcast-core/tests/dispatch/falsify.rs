//! Takes a good history and breaks one rule in it, as a wrong dispatcher would have.

use std::collections::BTreeMap;

use ringcast_core::dispatch::{Action, ConsumerId};

use crate::history::{Event, History, Random};

/// Breaks a rule at a random place; `false` where the history gives no opportunity.
type Falsify = fn(&mut History, &mut Random) -> bool;

/// What is done, words of the verdict that it must get at least now and then, and how it is done.
pub const FALSIFIERS: [(&str, &str, Falsify); 17] = [
    ("the next of a key goes out before the last is settled", "before an earlier message", early_next),
    ("a delivery is forgotten", "lies about", forgotten),
    ("a message is delivered twice", "while it is in flight", twice),
    ("a message goes to another consumer", "another than the owner", elsewhere),
    ("a delivery has the wrong number", "not numbered in turn", misnumbered),
    ("the cursor passes a message in flight", "passes an unsettled", cursor_ahead),
    ("the cursor stays behind", "not announced", cursor_behind),
    ("a wanted message is skipped", "somebody accepts", skipped),
    ("a time-out is forgotten", "was due", no_time_out),
    ("a time-out comes early", "timed out too early", early_time_out),
    ("a rejected message is tried again at once", "again too early", early_retry),
    ("poison is forgotten", "poison was not dealt with", no_poison),
    ("a message is poison too early", "too early", early_poison),
    ("the window is exceeded", "not the window", window_exceeded),
    ("a capacity is exceeded", "above the consumer's capacity", capacity_exceeded),
    ("a live consumer is evicted", "gives signs of life", evicted_alive),
    ("a stale answer counts", "for no other", stale_counts),
];

/// The places of the events for which `wanted` is true.
fn places(history: &History, wanted: impl Fn(&Event) -> bool) -> Vec<usize> {
    let events = history.events.iter().enumerate();
    events.filter(|(_, (_, event))| wanted(event)).map(|(place, _)| place).collect()
}

fn pick(history: &History, random: &mut Random, wanted: impl Fn(&Event) -> bool) -> Option<usize> {
    random.pick(&places(history, wanted)).copied()
}

/// The first place after `from` for which `wanted` is true.
fn after(history: &History, from: usize, wanted: impl Fn(&Event) -> bool) -> Option<usize> {
    places(history, wanted).into_iter().find(|&place| place > from)
}

const fn delivery(event: &Event) -> Option<(ConsumerId, u64, u32)> {
    match *event {
        Event::Did(Action::Deliver { consumer, offset, attempt }) => Some((consumer, offset, attempt)),
        _ => None,
    }
}

fn is_delivery(event: &Event) -> bool {
    delivery(event).is_some()
}

/// The delivery at a random place.
fn some_delivery(history: &History, random: &mut Random) -> Option<(usize, (ConsumerId, u64, u32))> {
    let place = pick(history, random, is_delivery)?;
    Some((place, delivery(&history.events[place].1)?))
}

fn insert(history: &mut History, place: usize, event: Event) {
    let now_ms = history.events[place.saturating_sub(1)].0;
    history.events.insert(place, (now_ms, event));
}

/// Moves an event to an earlier place, and to its time.
fn hasten(history: &mut History, from: usize, to: usize) {
    let (_, event) = history.events.remove(from);
    insert(history, to, event);
}

fn early_next(history: &mut History, random: &mut Random) -> bool {
    let keys: BTreeMap<u64, &str> = history.events.iter().filter_map(|(_, event)| offered(event)).collect();
    let mut chances = Vec::new();
    for place in places(history, |event| matches!(event, Event::Answer { accept: true, counted: true, .. })) {
        let Event::Answer { offset: acked, .. } = history.events[place].1 else { continue };
        let next = delivery(&history.events[place + 1].1).map(|one| one.1);
        if next.is_some_and(|next| keys[&next] == keys[&acked]) {
            chances.push(place);
        }
    }
    let Some(&place) = random.pick(&chances) else { return false };
    hasten(history, place + 1, place);
    true
}

const fn offered(event: &Event) -> Option<(u64, &'static str)> {
    match *event {
        Event::Offer { offset, key } => Some((offset, key)),
        _ => None,
    }
}

fn forgotten(history: &mut History, random: &mut Random) -> bool {
    let Some((place, _)) = some_delivery(history, random) else { return false };
    history.events.remove(place);
    true
}

fn twice(history: &mut History, random: &mut Random) -> bool {
    let Some((place, _)) = some_delivery(history, random) else { return false };
    let copy = history.events[place].1.clone();
    insert(history, place + 1, copy);
    true
}

fn elsewhere(history: &mut History, random: &mut Random) -> bool {
    let Some((place, (consumer, offset, attempt))) = some_delivery(history, random) else { return false };
    let joined = |event: &Event| matches!(event, Event::Join { id, .. } if *id != consumer);
    let others: Vec<usize> = places(history, joined).into_iter().filter(|&other| other < place).collect();
    let Some(&other) = random.pick(&others) else { return false };
    let Event::Join { id, .. } = history.events[other].1 else { return false };
    history.events[place].1 = Event::Did(Action::Deliver { consumer: id, offset, attempt });
    true
}

fn misnumbered(history: &mut History, random: &mut Random) -> bool {
    let Some((place, (consumer, offset, attempt))) = some_delivery(history, random) else { return false };
    history.events[place].1 = Event::Did(Action::Deliver { consumer, offset, attempt: attempt + 1 });
    true
}

fn cursor_ahead(history: &mut History, random: &mut Random) -> bool {
    let Some((place, (_, offset, _))) = some_delivery(history, random) else { return false };
    insert(history, place + 1, Event::Did(Action::Advance { cursor: offset }));
    true
}

fn cursor_behind(history: &mut History, random: &mut Random) -> bool {
    let advance = |event: &Event| matches!(event, Event::Did(Action::Advance { .. }));
    let Some(place) = pick(history, random, advance) else { return false };
    history.events.remove(place);
    true
}

fn skipped(history: &mut History, random: &mut Random) -> bool {
    let Some((place, (_, offset, attempt))) = some_delivery(history, random) else { return false };
    history.events[place].1 = Event::Did(Action::Skip { offset, deliveries: attempt - 1 });
    true
}

fn no_time_out(history: &mut History, random: &mut Random) -> bool {
    let timed_out = |event: &Event| matches!(event, Event::Did(Action::TimedOut { .. }));
    let Some(place) = pick(history, random, timed_out) else { return false };
    history.events.remove(place);
    true
}

fn early_time_out(history: &mut History, random: &mut Random) -> bool {
    let Some((place, (consumer, offset, attempt))) = some_delivery(history, random) else { return false };
    insert(history, place + 1, Event::Did(Action::TimedOut { consumer, offset, attempt }));
    true
}

fn early_retry(history: &mut History, random: &mut Random) -> bool {
    let rejected = |event: &Event| matches!(event, Event::Answer { accept: false, counted: true, .. });
    let Some(place) = pick(history, random, rejected) else { return false };
    let Event::Answer { offset, .. } = history.events[place].1 else { return false };
    let again = |event: &Event| delivery(event).is_some_and(|one| one.1 == offset);
    match after(history, place, again) {
        // One that was blocked and unblocked may be tried at once.
        Some(from) if after(history, place, |event| *event == Event::Unblock(offset)).is_none_or(|at| at > from) => {
            hasten(history, from, place + 1);
            true
        }
        _ => false,
    }
}

const fn is_poison(event: &Event) -> bool {
    matches!(event, Event::Did(Action::Drop { .. } | Action::DeadLetter { .. } | Action::Block { .. }))
}

fn no_poison(history: &mut History, random: &mut Random) -> bool {
    let Some(place) = pick(history, random, is_poison) else { return false };
    history.events.remove(place);
    true
}

/// As if a message had one more failure and one more delivery to go.
fn early_poison(history: &mut History, _: &mut Random) -> bool {
    history.settings.max_tries += 1;
    history.settings.max_deliveries += 1;
    history.events.iter().any(|(_, event)| is_poison(event))
}

fn window_exceeded(history: &mut History, _: &mut Random) -> bool {
    history.settings.window -= 1;
    true
}

/// As if a consumer had asked for one less than it had at some moment.
fn capacity_exceeded(history: &mut History, random: &mut Random) -> bool {
    let Some((_, (chosen, ..))) = some_delivery(history, random) else { return false };
    let (mut held, mut most) = (0_u32, 0);
    for (_, event) in &history.events {
        match event {
            Event::Did(Action::Deliver { consumer, .. }) if *consumer == chosen => held += 1,
            Event::Did(Action::TimedOut { consumer, .. }) if *consumer == chosen => held -= 1,
            Event::Answer { consumer, counted: true, .. } if *consumer == chosen => held -= 1,
            _ => {}
        }
        most = most.max(held);
    }
    for (_, event) in &mut history.events {
        if let Event::Join { id, capacity, .. } = event
            && *id == chosen
        {
            *capacity = most - 1;
        }
    }
    true
}

fn evicted_alive(history: &mut History, random: &mut Random) -> bool {
    let beat = |event: &Event| matches!(event, Event::Heartbeat(_));
    let Some(place) = pick(history, random, beat) else { return false };
    let Event::Heartbeat(consumer) = history.events[place].1 else { return false };
    insert(history, place + 1, Event::Did(Action::Evicted { consumer }));
    true
}

fn stale_counts(history: &mut History, random: &mut Random) -> bool {
    let stale = |event: &Event| matches!(event, Event::Answer { counted: false, .. });
    let Some(place) = pick(history, random, stale) else { return false };
    if let Event::Answer { counted, .. } = &mut history.events[place].1 {
        *counted = true;
    }
    true
}
