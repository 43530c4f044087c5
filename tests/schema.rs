//! `sluice schema` and the parser, held together: whatever the parser accepts, the schema accepts;
//! and what a schema can see, it refuses.

use crate::common::examples::{self, Example, root};
use boon::{Compiler, SchemaIndex, Schemas};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use serde_json::{Value, json};
use std::process::Command;

struct Schema {
    schemas: Schemas,
    index: SchemaIndex,
}

impl Schema {
    fn new() -> Self {
        let (mut schemas, mut compiler) = (Schemas::new(), Compiler::new());
        compiler.add_resource("gateway.schema.json", sluice::config::schema()).unwrap();
        let index = compiler.compile("gateway.schema.json", &mut schemas).unwrap();
        Self { schemas, index }
    }

    /// What it has against a file.
    fn against(&self, file: &Value) -> Option<String> {
        self.schemas.validate(file, self.index).err().map(|error| format!("{error:#}"))
    }

    fn accepts(&self, file: &Value) -> bool {
        self.schemas.validate(file, self.index).is_ok()
    }
}

/// What an editor makes of YAML: `off` is a word, merges are done, and all names are text.
fn yaml(text: &str) -> Option<Value> {
    let mut value: serde_yaml::Value = serde_yaml::from_str(text).ok()?;
    value.apply_merge().ok()?;
    Some(to_json(value))
}

fn to_json(value: serde_yaml::Value) -> Value {
    match value {
        serde_yaml::Value::Sequence(items) => items.into_iter().map(to_json).collect(),
        serde_yaml::Value::Mapping(map) => {
            let name = |key: serde_yaml::Value| match to_json(key) {
                Value::String(name) => name,
                other => other.to_string(),
            };
            Value::Object(map.into_iter().map(|(key, value)| (name(key), to_json(value))).collect())
        }
        serde_yaml::Value::Tagged(tagged) => to_json(tagged.value),
        scalar => serde_json::to_value(scalar).unwrap(),
    }
}

#[test]
fn the_shipped_schema_is_what_the_command_prints() {
    let output = Command::new(env!("CARGO_BIN_EXE_sluice")).arg("schema").output().unwrap();
    let shipped = std::fs::read(root("docs/gateway.schema.json")).unwrap();
    let message = "run: cargo run -- schema > docs/gateway.schema.json";
    assert!(output.status.success() && output.stdout == shipped, "{message}");
}

#[test]
fn editors_find_the_schema_of_every_shipped_file() {
    for file in ["gateway.yaml", "deploy/compose/gateway.yaml"] {
        let text = std::fs::read_to_string(root(file)).unwrap();
        let line = text.lines().next().unwrap();
        let path = line.strip_prefix("# yaml-language-server: $schema=").unwrap();
        assert!(root(file).parent().unwrap().join(path).exists(), "{file}: {path}");
    }
}

#[test]
fn every_example_fits_the_schema() {
    let schema = Schema::new();
    for Example { name, text } in examples::all() {
        if let Some(error) = schema.against(&yaml(&text).unwrap()) {
            panic!("{name}: {error}\n{text}");
        }
    }
}

/// Files of tests/bad whose mistakes no schema can see, and why.
const UNSEEN: [(&str, &str); 24] = [
    ("admin-reached.yaml", "compares two addresses"),
    ("bad-rewrite.yaml", "compares two fields"),
    ("cost-above-burst.yaml", "compares two numbers"),
    ("cost-above-plan.yaml", "compares two numbers"),
    ("exempt-unknown-key.yaml", "a name that refers to nothing"),
    ("given-twice.yaml", "a duplicate: JSON has none"),
    ("keys-file-missing.yaml", "a file that is missing"),
    ("listened-on-twice.yaml", "the same address in two items"),
    ("merge-of-a-word.yaml", "YAML itself"),
    ("no-environment.yaml", "a variable that is not set"),
    ("not-yaml.yaml", "YAML itself"),
    ("plan-without-name.yaml", "names that refer to nothing"),
    ("queue-too-slow.yaml", "arithmetic"),
    ("require-the-impossible.yaml", "refers to another section"),
    ("same-limit-name.yaml", "the same name twice"),
    ("same-route.yaml", "the same route twice"),
    ("snapshot-replaces.yaml", "which files there are"),
    ("tab-indent.yaml", "YAML itself"),
    ("tags-mean-nothing.yaml", "YAML itself"),
    ("tls-for-nobody.yaml", "what a URL of another field says"),
    ("two-documents.yaml", "YAML itself"),
    ("unknown-upstream.yaml", "a name that refers to nothing"),
    ("unset-secret.yaml", "a variable that is not set"),
    ("window-too-long.yaml", "arithmetic"),
];

#[test]
fn what_a_schema_can_see_it_refuses() {
    let schema = Schema::new();
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(root("tests/bad")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let text = std::fs::read_to_string(&path).unwrap();
        // What is no YAML is no JSON either: the editor says so without a schema.
        let seen = yaml(&text).is_some_and(|file| !schema.accepts(&file));
        if seen == UNSEEN.iter().any(|(unseen, _)| *unseen == name) {
            wrong.push((name, seen));
        }
    }
    assert!(wrong.is_empty(), "refused or not, against the list: {wrong:#?}");
}

/// Where every value of a file is, as JSON pointers; the file itself comes first.
fn places(value: &Value) -> Vec<String> {
    let below = |name: &str, value: &Value| {
        let name = name.replace('~', "~0").replace('/', "~1");
        places(value).into_iter().map(move |place| format!("/{name}{place}")).collect::<Vec<_>>()
    };
    let inner: Vec<Vec<String>> = match value {
        Value::Array(items) => {
            items.iter().enumerate().map(|(index, item)| below(&index.to_string(), item)).collect()
        }
        Value::Object(map) => map.iter().map(|(name, item)| below(name, item)).collect(),
        _ => Vec::new(),
    };
    std::iter::once(String::new()).chain(inner.into_iter().flatten()).collect()
}

fn everything() -> Vec<Value> {
    examples::everything().iter().map(|example| yaml(&example.text).unwrap()).collect()
}

/// The file with something else at one place, as YAML has it there.
fn with(file: &Value, place: &str, yaml: &str) -> String {
    let mut file = file.clone();
    *file.pointer_mut(place).unwrap() = json!("AT THIS PLACE");
    file.to_string().replace("\"AT THIS PLACE\"", yaml)
}

fn refused_by_both(schema: &Schema, text: &str) -> bool {
    !schema.accepts(&yaml(text).unwrap()) && examples::parse(text).is_err()
}

#[test]
fn every_map_refuses_fields_that_nobody_knows() {
    let schema = Schema::new();
    for file in everything() {
        for place in places(&file) {
            let Some(map) = file.pointer(&place).and_then(Value::as_object) else { continue };
            // Whose names are the user's, and whose values may be anything.
            if place.ends_with("/request_headers/set") || place == "/telemetry/headers" {
                continue;
            }
            let mut map = map.clone();
            map.insert("no_such_field".to_owned(), json!(1));
            let text = with(&file, &place, &json!(map).to_string());
            assert!(refused_by_both(&schema, &text), "{place}");
        }
    }
}

/// Also shows that no field is passed over by the parser.
#[test]
fn nonsense_is_refused_wherever_it_stands() {
    let schema = Schema::new();
    for file in everything() {
        for place in places(&file) {
            let text = with(&file, &place, "[[[]]]");
            assert!(refused_by_both(&schema, &text), "{place}");
        }
    }
}

#[test]
fn a_variable_may_stand_in_any_scalar() {
    let schema = Schema::new();
    for file in everything() {
        for place in places(&file) {
            if file.pointer(&place).unwrap().is_array() || file.pointer(&place).unwrap().is_object()
            {
                continue;
            }
            for variable in ["${NAME}", "${NAME:-5}", "a ${NAME} b"] {
                let text = with(&file, &place, &json!(variable).to_string());
                assert_eq!(schema.against(&yaml(&text).unwrap()), None, "{place}");
            }
        }
    }
}

/// YAML 1.2 knows no binary numbers, the parser does; and `off` was a boolean in YAML 1.1.
#[test]
fn what_readers_of_yaml_disagree_about_is_accepted_either_way() {
    let schema = Schema::new();
    let file = |headers: Value, off: Value| {
        json!({
            "listen": "127.0.0.1:0",
            "upstreams": { "app": { "endpoints": "http://a", "eject": off, "health": off } },
            "routes": [],
            "server": { "max_headers": headers },
            "logging": { "access": off },
        })
    };
    for (headers, off) in [(json!("0b11"), json!("off")), (json!(3), json!(false))] {
        assert_eq!(schema.against(&file(headers, off)), None);
    }
    assert!(!schema.accepts(&file(json!("11"), json!("off"))));
    assert!(!schema.accepts(&file(json!(3), json!("of"))));
}

/// What may be put anywhere, as YAML has it.
const VALUES: &str = "\
    ~ ; true ; false ; off ; on ; none ; '' ; 0 ; 1 ; 5 ; 64 ; 500 ; 503 ; -1 ; 1.5 ; 1e3 ; 0b11 ; \
    0o17 ; 0x1F ; 1_000 ; 007 ; 99999999999 ; 99999999999999999999999 ; '5' ; 'true' ; 0s ; 30s ; \
    30 s ; 5m ; 250ms ; 1d ; 11y ; 0% ; 20% ; 20 % ; 100% ; 100.5% ; .5% ; 1e1% ; 512B ; 64KiB ; \
    10MB ; 100/minute ; 0/s ; 5 / 30s ; 1/day ; plan ; plan.quota ; / ; /a/* ; /a//b ; /a/.. ; ip ; \
    global ; 'header:X-A' ; 127.0.0.1:80 ; '[::1]:80' ; 'http://a' ; 'HTTPS://a.b:8/#x' ; \
    'redis://a b@c' ; 10.0.0.0/8 ; GET ; [] ; {} ; [ip, user] ; { a: 1 }";

/// One change to a file.
#[derive(Clone, Debug)]
enum Change {
    Drop,
    Put(&'static str),
    /// What stands somewhere else.
    Copy(Index),
    Misspell(Index),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => Just(Change::Drop),
        6 => select(VALUES.split(" ; ").collect::<Vec<_>>()).prop_map(Change::Put),
        6 => any::<Index>().prop_map(Change::Copy),
        2 => any::<Index>().prop_map(Change::Misspell),
    ]
}

fn changed(file: &Value, place: &str, change: &Change) -> String {
    match change {
        Change::Put(yaml) => with(file, place, yaml),
        Change::Copy(other) => {
            let places = places(file);
            let other: &String = other.get(&places);
            with(file, place, &file.pointer(other).unwrap().to_string())
        }
        Change::Misspell(at) => match file.pointer(place).unwrap() {
            Value::String(text) if !text.is_empty() => {
                let mut letters: Vec<char> = text.chars().collect();
                letters.remove(at.index(letters.len()));
                with(file, place, &json!(letters.into_iter().collect::<String>()).to_string())
            }
            _ => file.to_string(),
        },
        Change::Drop => {
            let (map, name) = place.rsplit_once('/').unwrap_or_default();
            let mut file = file.clone();
            match file.pointer_mut(map) {
                Some(Value::Object(map)) => drop(map.remove(&name.replace("~1", "/"))),
                Some(Value::Array(items)) => drop(items.remove(name.parse().unwrap())),
                _ => {}
            }
            file.to_string()
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    /// An editor must never show an error where the parser sees none.
    #[test]
    fn what_the_parser_accepts_the_schema_accepts(
        file in any::<Index>(),
        changes in prop::collection::vec((any::<Index>(), change()), 100),
    ) {
        let (schema, files) = (Schema::new(), everything());
        let file = file.get(&files);
        let places = places(file);
        for (place, change) in changes {
            let place = place.get(&places);
            let text = changed(file, place, &change);
            let Some(value) = yaml(&text) else { continue };
            if let Some(error) = schema.against(&value) {
                prop_assert!(examples::parse(&text).is_err(), "{place}: {change:?}: {error}");
            }
        }
    }
}
