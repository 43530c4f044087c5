//! JSON that says each thing once: of two fields with one name another reader might believe the other.

use serde::de::{Deserialize, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use std::fmt;

/// Reads a text in which no object names a field twice.
pub(super) fn parse(bytes: &[u8]) -> Result<Value, serde_json::Error> {
    serde_json::from_slice(bytes).map(|Unique(value)| value)
}

struct Unique(Value);

impl<'de> Deserialize<'de> for Unique {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(Values).map(Self)
    }
}

struct Values;

impl<'de> Visitor<'de> for Values {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("JSON")
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Value, A::Error> {
        let mut list = Vec::new();
        while let Some(Unique(item)) = items.next_element()? {
            list.push(item);
        }
        Ok(list.into())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut fields: A) -> Result<Value, A::Error> {
        let mut map = Map::new();
        while let Some(name) = fields.next_key::<String>()? {
            if map.contains_key(&name) {
                return Err(Error::custom(format!("the field '{name}' is there twice")));
            }
            let Unique(value) = fields.next_value()?;
            map.insert(name, value);
        }
        Ok(map.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_that_is_there_twice_is_an_error_at_any_depth() {
        for twice in
            [r#"{"for":"1h","for":"9h"}"#, r#"{"a":[{"b":1,"b":1}]}"#, r#"{"for":1,"f\u006fr":2}"#]
        {
            assert!(parse(twice.as_bytes()).unwrap_err().to_string().contains("twice"), "{twice}");
        }
        let good = r#"{"a":[null,true,-1,2,0.5,"x",{"a":{}}],"b":18446744073709551615}"#;
        let plain: Value = serde_json::from_str(good).unwrap();
        assert_eq!(parse(good.as_bytes()).unwrap(), plain);
        assert!(parse(format!("{}1", "[".repeat(100_000)).as_bytes()).is_err());
    }
}
