//! Which names of fields are those of secrets, wherever they stand.

use crate::config::diagnostics::nearest;
use crate::config::section::{Section, Shape};
use crate::config::sections::GATEWAY;
use crate::config::shown::is_secret;
use std::collections::HashSet;
use std::sync::LazyLock;

/// Names of fields, from all tables.
#[derive(Debug, Default)]
pub(super) struct Names {
    secret: HashSet<&'static str>,
    plain: HashSet<&'static str>,
}

pub(super) static NAMES: LazyLock<Names> = LazyLock::new(|| {
    let mut names = Names::default();
    names.add(&GATEWAY);
    names
});

impl Names {
    fn add(&mut self, section: &Section) {
        for field in section.fields {
            let names = if field.secret { &mut self.secret } else { &mut self.plain };
            names.insert(field.name);
            self.add_shape(&field.shape);
        }
        if let Some(others) = &section.others {
            self.add_shape(&others.shape);
        }
    }

    fn add_shape(&mut self, shape: &Shape) {
        match shape {
            Shape::Map(section) => self.add(section),
            Shape::ByName(item) | Shape::List(item, _) | Shape::OneOrList(item, _) => {
                self.add_shape(item);
            }
            Shape::Either(shapes) => shapes.iter().for_each(|shape| self.add_shape(shape)),
            _ => {}
        }
    }

    /// Whether a field of this name is secret, as far as names tell. One that is secret in some places
    /// only counts where the place is not known.
    pub(super) fn is_secret(&self, name: &str, place_is_known: bool) -> bool {
        let plain = self.plain.contains(name);
        match self.secret.contains(name) {
            true => !plain || !place_is_known,
            false if plain => false,
            false => is_secret(name) || nearest(name, self.secret.iter().copied()).is_some(),
        }
    }
}
