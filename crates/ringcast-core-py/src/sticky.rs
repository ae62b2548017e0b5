//! Names of `assign_sticky` as they come in and go out; the core knows workers by their index.

use std::collections::{HashMap, HashSet};

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList, PyString};
use ringcast_core::sticky::Worker;
use ringcast_core::{Error, MAX_PARTITIONS};

use crate::border::to_exception;
use crate::ids::text_of;
use crate::ints::int;

/// The workers of one call.
pub struct Assigned {
    names: Vec<String>,
    capacities: Vec<u32>,
    drains: Vec<bool>,
    index: HashMap<String, u32>,
}

impl Assigned {
    pub fn new(names: Vec<String>, capacities: Option<Vec<u32>>, drains: &[String]) -> PyResult<Self> {
        let capacities = capacities.unwrap_or_else(|| vec![1; names.len()]);
        if capacities.len() != names.len() {
            let (expected, found) = (names.len(), capacities.len());
            return Err(PyValueError::new_err(format!(
                "capacities must have as many entries as workers, {expected}, got {found}"
            )));
        }
        let draining: HashSet<&str> = drains.iter().map(String::as_str).collect();
        let drains = names.iter().map(|name| draining.contains(name.as_str())).collect();
        let index = (0_u32..).zip(&names).map(|(at, name)| (name.clone(), at)).collect();
        Ok(Self { names, capacities, drains, index })
    }

    pub fn workers(&self) -> Vec<Worker<'_>> {
        let with = self.capacities.iter().zip(&self.drains);
        self.names.iter().zip(with).map(|(name, (&capacity, &drains))| Worker { name, capacity, drains }).collect()
    }

    /// The index of each partition's present owner, as far as it is one of the workers.
    pub fn owners(&self, owners: &Bound<'_, PyAny>) -> PyResult<Vec<Option<u32>>> {
        if owners.is_instance_of::<PyString>() {
            return Err(PyTypeError::new_err("owners must be a sequence of str and None, not one str"));
        }
        let one = |(at, owner): (usize, PyResult<Bound<'_, PyAny>>)| {
            let owner = owner?;
            if owner.is_none() { Ok(None) } else { self.find(&owner, || format!("owners[{at}]")) }
        };
        owners.try_iter()?.enumerate().map(one).collect()
    }

    fn find(&self, name: &Bound<'_, PyAny>, field: impl Fn() -> String) -> PyResult<Option<u32>> {
        match name.cast::<PyString>() {
            Ok(text) => match text.to_str() {
                Ok(name) => Ok(self.index.get(name).copied()),
                Err(_) => text_of(text, &field()).map(|_| None),
            },
            Err(_) => Err(PyTypeError::new_err(format!("{} must be str, got {}", field(), name.get_type().name()?))),
        }
    }

    /// The names of the workers at these indices.
    pub fn named<'py>(&self, py: Python<'py>, found: &[u32]) -> PyResult<Bound<'py, PyAny>> {
        let names: Vec<_> = self.names.iter().map(|name| PyString::new(py, name)).collect();
        Ok(PyList::new(py, found.iter().map(|&at| &names[at as usize]))?.into_any())
    }
}

/// Pins to workers that are there, of a mapping from partitions to names.
pub fn pins_of(pins: &Bound<'_, PyAny>, assigned: &Assigned) -> PyResult<Vec<(u32, u32)>> {
    let Ok(pins) = pins.cast::<PyDict>() else {
        return Err(PyTypeError::new_err(format!("pins must be dict, got {}", pins.get_type().name()?)));
    };
    let mut found = Vec::new();
    for (partition, name) in pins.iter() {
        let limits = (0, u64::from(MAX_PARTITIONS) - 1);
        let partition: u32 = int(&partition, "pinned partition", limits)?;
        if u64::from(partition) > limits.1 {
            let (value, min, max) = (u64::from(partition), limits.0, limits.1);
            return Err(to_exception(&Error::OutOfRange { field: "pinned partition", value, min, max }));
        }
        if let Some(worker) = assigned.find(&name, || format!("pins[{partition}]"))? {
            found.push((partition, worker));
        }
    }
    Ok(found)
}
