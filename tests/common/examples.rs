//! Every gateway.yaml that ships: files, manifests, and what the docs show.

use sluice::config::{self, LoadError, Loaded};
use std::path::{Path, PathBuf};

/// A whole file that must be valid.
pub struct Example {
    pub name: String,
    pub text: String,
}

/// A path in the repository.
pub fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Reads a text as the examples are meant: files lie in tests/fixtures, and variables are set.
pub fn parse(text: &str) -> Result<Loaded, LoadError> {
    let env = |name: &str| (name != "PORT").then(|| format!("value-of-{name}"));
    config::parse("example", text.to_owned(), &root("tests/fixtures"), &env)
}

/// All of them.
pub fn all() -> Vec<Example> {
    [shipped(), everything(), manifests(), documented()].into_iter().flatten().collect()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(root(path)).unwrap()
}

fn shipped() -> Vec<Example> {
    let files = ["gateway.yaml", "deploy/compose/gateway.yaml", "src/cli/demo.yaml"];
    let fill = |text: &str| text.replace("LISTEN", "127.0.0.1:0").replace("BACKEND", "127.0.0.1:1");
    files.map(|name| Example { name: name.to_owned(), text: fill(&read(name)) }).into()
}

/// Files that together have every field there is.
pub fn everything() -> Vec<Example> {
    let names = ["memory", "redis", "sentinel", "cluster"];
    let path = |name| format!("tests/fixtures/everything/{name}.yaml");
    names.map(|name| Example { name: path(name), text: read(&path(name)) }).into()
}

fn manifests() -> Vec<Example> {
    let name = "deploy/kubernetes/sluice.yaml";
    let text = read(name);
    let manifests = text.split("\n---\n").map(|document| {
        let manifest: serde_yaml::Value = serde_yaml::from_str(document).unwrap();
        manifest["data"]["gateway.yaml"].as_str().map(str::to_owned)
    });
    let found: Vec<Example> =
        manifests.flatten().map(|text| Example { name: name.to_owned(), text }).collect();
    assert_eq!(found.len(), 1);
    found
}

/// Every fenced YAML block of the docs: as it is, or with the sections that it leaves out put in
/// front.
fn documented() -> Vec<Example> {
    let pages = [
        "docs/configuration.md",
        "docs/algorithms.md",
        "docs/operations.md",
        "docs/protocols.md",
        "docs/upstreams.md",
        "README.md",
    ];
    let examples: Vec<Example> = pages.into_iter().flat_map(blocks).collect();
    assert!(examples.len() > 30, "{}", examples.len());
    examples
}

fn blocks(page: &str) -> Vec<Example> {
    let text = read(page);
    let blocks = text.split("```yaml\n").skip(1).map(|rest| rest.split("```").next().unwrap());
    // What begins with a dash is a file of keys.
    let whole = blocks.filter(|block| !block.starts_with("- ")).map(complete);
    whole.map(|text| Example { name: page.to_owned(), text }).collect()
}

fn complete(block: &str) -> String {
    let sections = [
        ("listen:", "listen: 127.0.0.1:0\n"),
        ("upstreams:", "upstreams: { app: http://127.0.0.1:3000 }\n"),
        ("routes:", "routes: [{ path: /, upstream: app }]\n"),
        (
            "plans:",
            "plans: { free: { rate: 1/s, daily: 9/day }, pro: { rate: 2/s, daily: 9/day } }\n",
        ),
        ("default_plan:", "default_plan: free\n"),
    ];
    let has = |name: &str| block.lines().any(|line| line.starts_with(name));
    let missing = sections.iter().filter(|(name, _)| !has(name)).map(|(_, text)| *text);
    missing.chain([block]).collect()
}
