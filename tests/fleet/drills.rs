//! Redis on its bad days.
