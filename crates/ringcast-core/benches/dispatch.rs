//! What a dispatch decision costs in the core: `cargo bench -p ringcast-core`.
//!
//! Each message is offered, delivered and acknowledged. That is two decisions: to whom it goes and when, and what its
//! acknowledgement sets free. Making up the messages and sorting the actions is counted too. The best of several rounds
//! counts. Where the kernel tells it, time is that on the processor, since the machine may be busy.

use std::collections::VecDeque;
use std::time::Instant;

use ringcast_core::dispatch::{Action, ConsumerId, Dispatcher, Settings};

const MESSAGES: u64 = 1_000_000;
const BATCH: usize = 256;
const ROUNDS: u32 = 5;

/// What a round is made of.
struct Load {
    name: &'static str,
    keys: usize,
    consumers: usize,
    /// One after another for the consumers.
    filters: &'static [&'static [&'static str]],
    /// Messages that are in flight on average.
    in_flight: usize,
}

const LOADS: [Load; 4] = [
    Load { name: "8 consumers, 100,000 keys", keys: 100_000, consumers: 8, filters: &[&[]], in_flight: 2000 },
    Load { name: "50 consumers, 100,000 keys", keys: 100_000, consumers: 50, filters: &[&[]], in_flight: 2000 },
    Load {
        name: "8 consumers, 1,000 keys that wait for themselves",
        keys: 1000,
        consumers: 8,
        filters: &[&[]],
        in_flight: 900,
    },
    Load {
        name: "8 consumers with four lists of filters",
        keys: 100_000,
        consumers: 8,
        filters: &[&[], &["row-0*"], &["*5", "*7"], &["row-00001?", "row-9*"]],
        in_flight: 2000,
    },
];

fn main() {
    for load in &LOADS {
        let keys: Vec<String> = (0..load.keys).map(|key| format!("row-{key:06}")).collect();
        let best_s = (0..ROUNDS).map(|_| round(load, &keys)).fold(f64::INFINITY, f64::min);
        #[allow(clippy::cast_precision_loss)] // far below 2^53
        let each_ns = best_s * 1e9 / MESSAGES as f64;
        println!("{}: {each_ns:.0} ns a message, {:.2} million messages/s", load.name, 1e3 / each_ns);
    }
}

/// Takes every message through a dispatcher; the seconds it took.
fn round(load: &Load, keys: &[String]) -> f64 {
    let mut dispatcher = Dispatcher::new(Settings::default(), 0).expect("the defaults are good");
    let mut out = Vec::new();
    for consumer in 0..load.consumers {
        let filters = load.filters[consumer % load.filters.len()];
        let name = format!("consumer-{consumer}");
        dispatcher.join(&name, filters, Some(10_000), 0, &mut out).expect("there is room");
    }
    let (mut held, mut batch) = (VecDeque::new(), Vec::with_capacity(BATCH));
    let (mut arrived, mut random, mut now_ms) = (0_u64, 1_u64, 0_u64);
    let start = Watch::start();
    while dispatcher.cursor() < MESSAGES {
        now_ms += 1;
        batch.clear();
        for offset in arrived + 1..=(arrived + BATCH as u64).min(MESSAGES) {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            batch.push((offset, &*keys[(random >> 33) as usize % keys.len()]));
        }
        arrived += dispatcher.offer(&batch, now_ms, &mut out).expect("the keys are short") as u64;
        note(&mut out, &mut held);
        let keep = if arrived < MESSAGES { load.in_flight } else { 0 };
        while held.len() > keep {
            let Some((consumer, offset, attempt)) = held.pop_front() else { break };
            dispatcher.acknowledge(consumer, &[(offset, attempt)], now_ms, &mut out);
            note(&mut out, &mut held);
        }
    }
    let spent_s = start.elapsed_s();
    assert_eq!(dispatcher.counts().acked, MESSAGES);
    spent_s
}

fn note(out: &mut Vec<Action>, held: &mut VecDeque<(ConsumerId, u64, u32)>) {
    for action in out.drain(..) {
        if let Action::Deliver { consumer, offset, attempt } = action {
            held.push_back((consumer, offset, attempt));
        }
    }
}

/// Time on the processor, or else time.
struct Watch {
    processor_ns: Option<u64>,
    wall: Instant,
}

impl Watch {
    fn start() -> Self {
        Self { processor_ns: processor_ns(), wall: Instant::now() }
    }

    #[allow(clippy::cast_precision_loss)] // far below 2^53
    fn elapsed_s(&self) -> f64 {
        match (self.processor_ns, processor_ns()) {
            (Some(before), Some(after)) => (after - before) as f64 / 1e9,
            _ => self.wall.elapsed().as_secs_f64(),
        }
    }
}

/// Nanoseconds that this process has run for, by Linux.
fn processor_ns() -> Option<u64> {
    std::fs::read_to_string("/proc/self/schedstat").ok()?.split_whitespace().next()?.parse().ok()
}
