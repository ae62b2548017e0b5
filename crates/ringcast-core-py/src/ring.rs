//! `Ring`: the consistent ring with 100 virtual nodes a member.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyList, PyString};
use ringcast_core::ring;

use crate::border::released;
use crate::ids::{Ids, bytes_of, text_of};

/// A consistent ring over a fixed list of 1 to 1024 distinct names, with 100 virtual nodes a member.
///
/// Adding or removing one of n members moves about 1/n of the keys. The order of the list has no influence.
#[pyclass(frozen, module = "ringcast_core")]
pub struct Ring {
    points: ring::Ring,
    names: Vec<String>,
    members: Vec<Py<PyString>>,
}

#[pymethods]
impl Ring {
    #[new]
    fn new(py: Python<'_>, members: &Bound<'_, PyAny>) -> PyResult<Self> {
        let names = names_of(members, "members")?;
        let points = released(py, || ring::Ring::new(&names))?;
        let members = names.iter().map(|name| PyString::new(py, name).unbind()).collect();
        Ok(Self { points, names, members })
    }

    /// The member that owns `key` (str as UTF-8, or bytes). With `eligible`, the first of those members clockwise, or
    /// None when `eligible` is empty. Raises ValueError when `eligible` names no member of the ring.
    #[pyo3(signature = (key, eligible=None))]
    fn owner<'py>(
        &self,
        key: &Bound<'py, PyAny>,
        eligible: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyString>>> {
        let bytes = bytes_of(key, "key")?;
        let owner = match eligible {
            None => Some(self.points.owner(bytes)),
            Some(names) => {
                let allowed = self.allowed(names)?;
                self.points.owner_among(bytes, |member| allowed[member as usize])
            }
        };
        Ok(owner.map(|member| self.members[member as usize].bind(key.py()).clone()))
    }

    /// The owner of each key, in one crossing; the interpreter lock is released while it searches.
    fn owners<'py>(&self, keys: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyList>> {
        let py = keys.py();
        let held = Ids::hold(keys, "keys")?;
        let views = held.views("keys")?;
        let owners = released(py, || Ok(self.points.owners(&views)))?;
        PyList::new(py, owners.into_iter().map(|member| self.members[member as usize].bind(py)))
    }

    /// The members, in the order given.
    #[getter]
    fn members<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        PyList::new(py, &self.members)
    }

    fn __len__(&self) -> usize {
        self.members.len()
    }
}

impl Ring {
    fn allowed(&self, eligible: &Bound<'_, PyAny>) -> PyResult<Vec<bool>> {
        let mut allowed = vec![false; self.names.len()];
        for name in names_of(eligible, "eligible")? {
            let Some(member) = self.names.iter().position(|known| *known == name) else {
                return Err(PyValueError::new_err(format!("eligible must name members of the ring, got {name:?}")));
            };
            allowed[member] = true;
        }
        Ok(allowed)
    }
}

/// Member names of any iterable of `str`.
pub fn names_of(names: &Bound<'_, PyAny>, field: &str) -> PyResult<Vec<String>> {
    if names.is_instance_of::<PyString>() {
        return Err(PyTypeError::new_err(format!("{field} must be a sequence of str, not one str")));
    }
    let name = |(index, name): (usize, PyResult<Bound<'_, PyAny>>)| {
        let name = name?;
        let field = format!("{field}[{index}]");
        match name.cast::<PyString>() {
            Ok(text) => Ok(text_of(text, &field)?.to_owned()),
            Err(_) => Err(PyTypeError::new_err(format!("{field} must be str, got {}", name.get_type().name()?))),
        }
    };
    names.try_iter()?.enumerate().map(name).collect()
}
