//! Holds the tables together with what reads by them. That no field is passed over is shown by
//! `tests/schema.rs`, with the same files.

use super::GATEWAY;
use crate::config::parse;
use crate::config::section::{Rule, Section, Shape};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

/// Every section, by what messages call it.
fn sections() -> BTreeMap<&'static str, &'static Section> {
    fn look(shape: &Shape, all: &mut BTreeMap<&'static str, &'static Section>) {
        match *shape {
            Shape::Map(section) => {
                let known = all.insert(section.what, section);
                assert!(known.is_none_or(|known| std::ptr::eq(known, section)), "{}", section.what);
                let fields = section.fields.iter().chain(&section.others);
                fields.for_each(|field| look(&field.shape, all));
            }
            Shape::ByName(item) | Shape::List(item, _) | Shape::OneOrList(item, _) => {
                look(item, all);
            }
            Shape::Either(shapes) => shapes.iter().for_each(|shape| look(shape, all)),
            _ => {}
        }
    }
    let mut all = BTreeMap::new();
    look(&Shape::Map(&GATEWAY), &mut all);
    all
}

/// Files that together have every field.
fn files() -> Vec<Value> {
    let names = ["memory", "redis", "sentinel", "cluster"];
    let read = |name| std::fs::read_to_string(format!("tests/fixtures/everything/{name}.yaml"));
    names.map(|name| serde_yaml::from_str(&read(name).unwrap()).unwrap()).into()
}

/// Calls `each` with every map of a file, its table, and its place as a JSON pointer.
fn maps(
    value: &Value,
    shape: &Shape,
    place: &str,
    each: &mut impl FnMut(&'static Section, &Map<String, Value>, &str),
) {
    match (*shape, value) {
        (Shape::Map(section), Value::Object(map)) => {
            each(section, map, place);
            for (name, value) in map {
                let field = section.field(name).unwrap();
                maps(value, &field.shape, &format!("{place}/{name}"), each);
            }
        }
        (Shape::ByName(item), Value::Object(map)) => {
            for (name, value) in map {
                maps(value, item, &format!("{place}/{name}"), each);
            }
        }
        (Shape::List(item, _) | Shape::OneOrList(item, _), Value::Array(items)) => {
            for (index, value) in items.iter().enumerate() {
                maps(value, item, &format!("{place}/{index}"), each);
            }
        }
        (Shape::OneOrList(item, _), _) => maps(value, item, place, each),
        (Shape::Either(shapes), _) => {
            for shape in shapes {
                maps(value, shape, place, each);
            }
        }
        _ => {}
    }
}

#[test]
fn names_are_given_once_and_every_field_says_what_it_is() {
    for section in sections().values() {
        let names: BTreeSet<&str> = section.names().collect();
        assert_eq!(names.len(), section.fields.len(), "{}", section.what);
        for field in section.fields.iter().chain(&section.others) {
            let doc = field.doc;
            assert!(
                doc.ends_with('.') && doc.len() < 120,
                "{} {}: {doc}",
                section.what,
                field.name
            );
        }
    }
}

#[test]
fn rules_speak_of_fields_that_there_are() {
    for section in sections().values() {
        let names: Vec<&str> = section.names().collect();
        for rule in section.rules {
            let spoken_of = match *rule {
                Rule::One(names) | Rule::AtMostOne(names) => names.to_vec(),
                Rule::Needs(a, b)
                | Rule::Where(a, b, _)
                | Rule::Without(a, b, _)
                | Rule::Unless(a, _, b)
                | Rule::Several(a, b) => vec![a, b],
            };
            assert!(spoken_of.iter().all(|name| names.contains(name)), "{rule:?}");
        }
    }
}

#[test]
fn the_files_that_have_everything_have_every_field() {
    let mut seen = BTreeSet::new();
    for file in files() {
        maps(&file, &Shape::Map(&GATEWAY), "", &mut |section, map, _| {
            seen.extend(map.keys().map(|name| (section.what, name.clone())));
        });
    }
    for section in sections().values() {
        for name in section.names() {
            assert!(seen.contains(&(section.what, name.to_owned())), "{} {name}", section.what);
        }
    }
}

/// What a file means, beside how it is written.
fn meaning(file: &Value) -> Option<String> {
    let text = file.to_string();
    let loaded = parse("gateway.yaml", text, Path::new("tests/fixtures"), &|_| None).ok()?;
    let mut config = loaded.config;
    config.shown = Value::Null;
    Some(format!("{config:?}"))
}

/// A default is the same as nothing, wherever a field may be left out.
#[test]
fn defaults_are_what_holds_without_the_field() {
    let mut compared = BTreeSet::new();
    for file in files() {
        let mut places = Vec::new();
        maps(&file, &Shape::Map(&GATEWAY), "", &mut |section, map, place| {
            let given = section.fields.iter().filter(|field| map.contains_key(field.name));
            places.extend(given.map(|field| (section.what, *field, place.to_owned())));
        });
        for (what, field, place) in places {
            let Some(default) = field.default else { continue };
            let default: Value = serde_yaml::from_str(default).unwrap();
            let (mut without, mut with) = (file.clone(), file.clone());
            without.pointer_mut(&place).unwrap().as_object_mut().unwrap().remove(field.name);
            with.pointer_mut(&place).unwrap()[field.name] = default;
            let Some(meant) = meaning(&without) else { continue };
            assert_eq!(meaning(&with), Some(meant), "{place} {}", field.name);
            compared.insert((what, field.name));
        }
    }
    for section in sections().values() {
        for field in section.fields.iter().filter(|field| field.default.is_some()) {
            assert!(compared.contains(&(section.what, field.name)), "{field:?}");
        }
    }
}
