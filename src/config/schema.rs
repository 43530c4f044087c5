//! The tables of `gateway.yaml` as a JSON Schema, for editors: `sluice schema`.
//!
//! Whatever the parser accepts, the schema accepts: an editor must not show an error where there is
//! none. What no schema can see (names that refer to nothing, files that are missing, sums) is left
//! to `sluice check`. It is draft 7, the one that `yaml-language-server` knows best.

mod scalars;

use super::routes::headers::{EDITABLE, HEADER_VALUE};
use super::section::{Field, Rule, Section, Shape};
use super::sections::GATEWAY;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;

/// The JSON Schema of `gateway.yaml`.
pub fn schema() -> Value {
    let shared = Shared::of(&GATEWAY);
    let mut root = Map::new();
    root.insert("$schema".to_owned(), json!("http://json-schema.org/draft-07/schema#"));
    root.insert("title".to_owned(), json!("gateway.yaml of Sluice"));
    root.extend(shared.section(&GATEWAY));
    let definitions: Map<String, Value> = shared
        .twice()
        .map(|section| (key(section), Value::Object(shared.section(section))))
        .collect();
    root.insert("definitions".to_owned(), Value::Object(definitions));
    Value::Object(root)
}

/// Sections by what they are called, with how often they are used.
struct Shared(BTreeMap<&'static str, (&'static Section, usize)>);

impl Shared {
    fn of(root: &'static Section) -> Self {
        let mut shared = Self(BTreeMap::new());
        shared.count(root);
        shared
    }

    fn count(&mut self, section: &'static Section) {
        for field in section.fields.iter().chain(&section.others) {
            self.count_in(&field.shape);
        }
    }

    fn count_in(&mut self, shape: &Shape) {
        match *shape {
            Shape::Map(section) => {
                let (_, times) = self.0.entry(section.what).or_insert((section, 0));
                *times += 1;
                if *times == 1 {
                    self.count(section);
                }
            }
            // What may stand alone or in a list is written down twice.
            Shape::OneOrList(item, _) => {
                self.count_in(item);
                self.count_in(item);
            }
            Shape::ByName(item) | Shape::List(item, _) => self.count_in(item),
            Shape::Either(shapes) => shapes.iter().for_each(|shape| self.count_in(shape)),
            _ => {}
        }
    }

    /// What is used twice is defined once.
    fn twice(&self) -> impl Iterator<Item = &'static Section> {
        self.0.values().filter(|(_, times)| *times > 1).map(|(section, _)| *section)
    }

    fn section(&self, section: &Section) -> Map<String, Value> {
        let fields = section.fields.iter();
        let properties: Map<String, Value> =
            fields.map(|field| (field.name.to_owned(), self.field(field))).collect();
        let required = section.fields.iter().filter(|field| field.required.is_some());
        let required: Vec<&str> = required.map(|field| field.name).collect();
        let others = section.others.as_ref().map_or(Value::Bool(false), |field| self.field(field));
        let mut map = object(json!({ "type": "object", "properties": properties }));
        if !required.is_empty() {
            map.insert("required".to_owned(), json!(required));
        }
        map.insert("additionalProperties".to_owned(), others);
        if !section.rules.is_empty() {
            let rules: Vec<Value> = section.rules.iter().map(|rule| self.rule(rule)).collect();
            map.insert("allOf".to_owned(), Value::Array(rules));
        }
        map
    }

    fn field(&self, field: &Field) -> Value {
        let mut map = object(json!({ "description": field.doc }));
        if let Some(default) = field.default {
            map.insert("default".to_owned(), typed(default));
        }
        let shape = self.shape(&field.shape);
        let optional = field.required.is_none() && !field.never_empty;
        map.extend(object(if optional { or_nothing(shape) } else { shape }));
        Value::Object(map)
    }

    fn shape(&self, shape: &Shape) -> Value {
        match *shape {
            Shape::Text => json!({ "type": ["string", "number", "boolean"] }),
            Shape::Like(grammar) => scalars::like(grammar),
            Shape::Number(least, most) => scalars::number(least, most),
            Shape::Truth => scalars::truth(),
            Shape::Words(words) => scalars::words(&words()),
            Shape::Map(section) if self.twice().any(|known| known.what == section.what) => {
                json!({ "$ref": format!("#/definitions/{}", key(section)) })
            }
            Shape::Map(section) => Value::Object(self.section(section)),
            Shape::ByName(item) => {
                json!({ "type": "object", "additionalProperties": self.shape(item) })
            }
            Shape::Headers => json!({
                "type": "object",
                "propertyNames": scalars::name(&EDITABLE),
                "additionalProperties": scalars::like(&HEADER_VALUE),
            }),
            Shape::List(item, least) => list(&self.shape(item), least),
            Shape::OneOrList(item, least) => {
                let item = self.shape(item);
                any(vec![item.clone(), list(&item, least)])
            }
            Shape::Either(shapes) => any(shapes.iter().map(|shape| self.shape(shape)).collect()),
        }
    }

    fn rule(&self, rule: &Rule) -> Value {
        let is = |name: &str, shape: &Shape| json!({ "properties": { name: self.shape(shape) } });
        match *rule {
            Rule::One(names) => {
                let given: Vec<Value> = names.iter().map(|name| given(name)).collect();
                json!({ "oneOf": given })
            }
            Rule::AtMostOne(names) => {
                let pairs = names.iter().enumerate().flat_map(|(index, name)| {
                    let both = move |other: &&str| json!({ "allOf": [given(name), given(other)] });
                    names[index + 1..].iter().map(both)
                });
                json!({ "not": { "anyOf": pairs.collect::<Vec<_>>() } })
            }
            Rule::Needs(name, other) => json!({ "if": given(name), "then": given(other) }),
            Rule::Where(name, other, shape) => {
                let shape = or_nothing(self.shape(&shape));
                json!({ "if": given(name), "then": { "properties": { other: shape } } })
            }
            Rule::Without(name, other, shape) => {
                json!({ "if": given(name), "else": is(other, &shape) })
            }
            Rule::Unless(name, shape, other) => {
                json!({ "if": is(name, &shape), "else": given(other) })
            }
            Rule::Several(name, other) => {
                let several = json!({ "type": "object", "minProperties": 2 });
                let several = json!({ "required": [name], "properties": { name: several } });
                json!({ "if": several, "then": given(other) })
            }
        }
    }
}

/// A field is there, and not empty.
fn given(name: &str) -> Value {
    json!({ "required": [name], "properties": { name: { "not": { "type": "null" } } } })
}

fn list(item: &Value, least: usize) -> Value {
    let mut map = object(json!({ "type": "array", "items": item }));
    if least > 0 {
        map.insert("minItems".to_owned(), json!(least));
    }
    Value::Object(map)
}

/// Any of these, where some may have been several already.
fn any(shapes: Vec<Value>) -> Value {
    let mut all: Vec<Value> = Vec::new();
    for shape in shapes {
        let several = shape.get("anyOf").and_then(Value::as_array).cloned();
        for shape in several.unwrap_or_else(|| vec![shape]) {
            if !all.contains(&shape) {
                all.push(shape);
            }
        }
    }
    json!({ "anyOf": all })
}

/// A field that is empty is not given.
fn or_nothing(shape: Value) -> Value {
    let mut map = object(shape);
    match map.get_mut("type") {
        Some(Value::Array(types)) => types.push(json!("null")),
        Some(only) if only == "string" => *only = json!(["string", "null"]),
        _ => return any(vec![Value::Object(map), json!({ "type": "null" })]),
    }
    Value::Object(map)
}

/// A value as the file would say it.
fn typed(text: &str) -> Value {
    serde_yaml::from_str(text).unwrap_or_else(|_| json!(text))
}

/// What a section is called among the definitions: `a limit` is `limit`.
fn key(section: &Section) -> String {
    let what = section.what;
    let short = ["a ", "an ", "the "].iter().find_map(|article| what.strip_prefix(article));
    short.unwrap_or(what).replace([' ', '\''], "_")
}

/// `json!({ .. })` is an object.
fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}
