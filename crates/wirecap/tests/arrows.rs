//! The dependencies between crates of all workspaces, between folders of the engine, and between
//! the files of each crate (except the archive) have no cycles.
//!
//! `docs/crates.md` lists the arrows between the crates and between the folders of the engine, and
//! they are exactly those of the code. Within a crate a module and its parents may use each other;
//! of two children of one parent, including their descendants, only one may use the other. Imported
//! names are resolved to their declarations. Code for tests only does not count.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// A module by its path, for example `umem::pool`; the crate's root is the empty path.
type Module = Vec<String>;
type Arrows = BTreeMap<String, BTreeSet<String>>;

fn crates() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The text of every module in this folder and below, without comments and tests.
fn read(folder: &Path, module: &[String], found: &mut BTreeMap<Module, String>) {
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = entry.file_stem().unwrap().to_str().unwrap();
        let child = [module, &[name.to_owned()]].concat();
        if name.ends_with("tests") {
            continue;
        } else if entry.is_dir() {
            read(&entry, &child, found);
        } else if entry.extension().is_some_and(|extension| extension == "rs") {
            let text = fs::read_to_string(&entry).unwrap();
            let lines = text.lines().filter(|line| !line.trim_start().starts_with("//"));
            let code = lines.take_while(|line| {
                !line.starts_with("mod tests {") && !line.starts_with("mod model {")
            });
            let module =
                if matches!(name, "lib" | "main" | "mod") { module.to_vec() } else { child };
            found.entry(module).or_default().push_str(&code.collect::<Vec<_>>().join("\n"));
        }
    }
}

/// The paths at the beginning of `text`, of which `a::{b, c::d}` is two, and the following text.
fn paths(text: &str) -> (Vec<Module>, &str) {
    let end = text.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(text.len());
    let name = text[..end].to_owned();
    let Some(mut rest) = text[end..].strip_prefix("::") else {
        return (vec![vec![name]], &text[end..]);
    };
    let mut tails = Vec::new();
    if rest.starts_with('{') {
        while !rest.starts_with('}') {
            let (more, after) = paths(rest[1..].trim_start());
            tails.extend(more);
            rest = &after[after.find([',', '}']).unwrap()..]; // past `as Name`
            rest = if rest[1..].trim_start().starts_with('}') && rest.starts_with(',') {
                rest[1..].trim_start()
            } else {
                rest
            };
        }
        rest = &rest[1..];
    } else {
        (tails, rest) = paths(rest);
    }
    (tails.into_iter().map(|tail| [vec![name.clone()], tail].concat()).collect(), rest)
}

/// A path in a module's text, from the crate's root; none for paths into other crates.
fn from_root(
    path: &[String],
    module: &[String],
    modules: &BTreeMap<Module, String>,
) -> Option<Module> {
    let supers = path.iter().take_while(|name| *name == "super").count();
    match path[0].as_str() {
        "crate" => Some(path[1..].to_vec()),
        "super" => Some([&module[..module.len() - supers], &path[supers..]].concat()),
        "self" => Some([module, &path[1..]].concat()),
        child => modules
            .contains_key(&[module, &[child.to_owned()]].concat())
            .then(|| [module, path].concat()),
    }
}

/// Which modules use which, if neither is an ancestor of the other.
fn arrows(root: &Path) -> BTreeSet<(Module, Module)> {
    let mut modules = BTreeMap::new();
    read(root, &[], &mut modules);
    let mut taken = BTreeMap::new();
    for (module, text) in &modules {
        for (at, found) in text
            .match_indices("use ")
            .filter(|(at, _)| *at == 0 || !text[..*at].ends_with(char::is_alphanumeric))
        {
            for path in paths(&text[at + found.len()..]).0 {
                if let Some(from_root) = from_root(&path, module, &modules) {
                    taken.insert([module.as_slice(), &path[path.len() - 1..]].concat(), from_root);
                }
            }
        }
    }
    let declared_in = |mut path: Module| {
        for _ in 0..8 {
            let Some(owner) = (0..=path.len()).rev().find(|&n| modules.contains_key(&path[..n]))
            else {
                break;
            };
            match taken.get(&path[..path.len().min(owner + 1)]) {
                Some(elsewhere) if *elsewhere != path => {
                    path = [elsewhere.as_slice(), &path[owner + 1..]].concat();
                }
                _ => return path[..owner].to_vec(),
            };
        }
        Vec::new()
    };
    let mut arrows = BTreeSet::new();
    for (module, text) in &modules {
        for (at, _) in ["crate::", "super::"].iter().flat_map(|word| text.match_indices(word)) {
            if text[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_' || c == ':') {
                continue;
            }
            for path in paths(&text[at..]).0 {
                let to = declared_in(from_root(&path, module, &modules).unwrap());
                if !module.starts_with(&to) && !to.starts_with(module) {
                    arrows.insert((module.clone(), to));
                }
            }
        }
    }
    arrows
}

/// The arrows between the children of each parent, including their descendants. The key is the
/// parent.
fn between_siblings(arrows: &BTreeSet<(Module, Module)>) -> BTreeMap<Module, Arrows> {
    let mut siblings: BTreeMap<Module, Arrows> = BTreeMap::new();
    for (from, to) in arrows {
        // neither is an ancestor of the other, so there is a first name in which they differ
        let shared = from.iter().zip(to).take_while(|(a, b)| a == b).count();
        let parent = siblings.entry(from[..shared].to_vec()).or_default();
        parent.entry(from[shared].clone()).or_default().insert(to[shared].clone());
    }
    siblings
}

/// The modules that remain after repeatedly removing modules without dependencies.
fn circles(mut arrows: Arrows) -> Arrows {
    loop {
        let needing = arrows.keys().cloned().collect::<BTreeSet<_>>();
        arrows.values_mut().for_each(|needed| needed.retain(|name| needing.contains(name)));
        let before = arrows.len();
        arrows.retain(|_, needed| !needed.is_empty());
        if arrows.len() == before {
            return arrows;
        }
    }
}

/// The arrows that docs/crates.md draws below this heading, one line `from → to, to` each.
fn drawn(heading: &str) -> Arrows {
    let text = fs::read_to_string(crates().join("../docs/crates.md")).unwrap();
    let (_, list) = text.split_once(heading).unwrap();
    let list = list.split("```").nth(1).unwrap();
    let lines = list.lines().filter_map(|line| line.split_once('→'));
    let names = |to: &str| to.split(',').map(|name| name.trim().to_owned()).collect();
    lines.map(|(from, to)| (from.trim().to_owned(), names(to))).collect()
}

/// The folders with `src` and Cargo.toml, by the name of the crate; also those of the other
/// workspaces.
fn each_crate() -> BTreeMap<String, PathBuf> {
    let folders = fs::read_dir(crates()).unwrap().map(|entry| entry.unwrap().path());
    let others = ["lab", "lab/nics", "archive"].map(|folder| crates().join("..").join(folder));
    let folders = folders.filter(|folder| folder.join("Cargo.toml").exists()).chain(others);
    let name = |folder: &Path| {
        let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
        let line = manifest.lines().find_map(|line| line.strip_prefix("name = \"")).unwrap();
        line.trim_end_matches('"').to_owned()
    };
    folders.map(|folder| (name(&folder), folder)).collect()
}

#[test]
fn no_module_needs_another_in_a_circle() {
    // The archive has a circle of files, from before it was checked here.
    for (name, folder) in each_crate().into_iter().filter(|(name, _)| name != "wirecap-archive") {
        let arrows = arrows(&folder.join("src"));
        for (parent, siblings) in between_siblings(&arrows) {
            let circles = circles(siblings);
            let between = |(from, to): &&(Module, Module)| {
                let below = |module: &Module| {
                    module.starts_with(&parent) && circles.contains_key(&module[parent.len()])
                };
                below(from) && below(to)
            };
            let arrows = arrows
                .iter()
                .filter(between)
                .map(|(from, to)| format!("\n  {} → {}", from.join("::"), to.join("::")));
            assert!(
                circles.is_empty(),
                "{name} has a circle among these arrows:{}",
                arrows.collect::<String>()
            );
        }
    }
}

#[test]
fn the_folders_of_the_engine_need_each_other_as_the_page_draws_it() {
    let found =
        between_siblings(&arrows(&crates().join("wirecap/src"))).remove(&Vec::new()).unwrap();
    assert_drawn("## Folders of the engine", &found);
}

#[test]
fn crates_need_each_other_as_the_page_draws_it() {
    let found = between_crates();
    assert!(circles(found.clone()).is_empty());
    assert_drawn("## Crates", &found);
}

/// What only some rings can do has a trait of its own.
#[test]
fn a_ring_has_few_methods() {
    let text = fs::read_to_string(crates().join("wirecap/src/umem/ring.rs")).unwrap();
    let methods = |name: &str| {
        let (_, rest) = text.split_once(&format!("trait {name}")).unwrap();
        let (body, _) = rest.split_once("\n}\n").unwrap();
        body.matches("\n    fn ").count()
    };
    assert_eq!((methods("Ring:"), methods("Counters {")), (10, 5));
    assert!(!text.contains("Any"), "the type of a ring is known where it is opened");
}

/// The program runs with privileges: what only the lab and tests need, it does not contain.
#[test]
fn the_command_contains_no_lab_no_testbed_and_no_simulator() {
    let arrows = between_crates();
    let crates = each_crate();
    let mut contained = BTreeSet::from(["wirecap-cli".to_owned()]);
    loop {
        let needed = contained.iter().filter_map(|name| arrows.get(name)).flatten().cloned();
        let more = needed.filter(|name| !contained.contains(name)).collect::<BTreeSet<_>>();
        if more.is_empty() {
            break;
        }
        contained.extend(more);
    }
    for name in ["wirecap-lab", "wirecap-nics", "wirecap-testbed"] {
        assert!(!contained.contains(name), "wirecap-cli contains {name}: {contained:?}");
    }
    for name in &contained {
        assert!(!dependencies(&crates[name]).contains("\"sim\""), "{name} needs the simulator");
    }
    // Charts, templates, data files and libpcap of the lab.
    let locked = fs::read_to_string(self::crates().join("../Cargo.lock")).unwrap();
    for name in ["plotters", "maud", "csv", "libloading"] {
        assert!(!locked.contains(&format!("name = \"{name}\"")), "the product needs {name}");
    }
}

/// The section of the manifest that lists what the crate itself needs.
fn dependencies(folder: &Path) -> String {
    let manifest = fs::read_to_string(folder.join("Cargo.toml")).unwrap();
    let section = manifest.split("\n[").find_map(|section| section.strip_prefix("dependencies]"));
    section.unwrap_or_default().to_owned()
}

fn between_crates() -> Arrows {
    let mut found = Arrows::new();
    for (name, folder) in each_crate() {
        let dependencies = dependencies(&folder);
        let names = dependencies.lines().map(|line| line.split(['.', ' ']).next().unwrap());
        let ours = names
            .filter(|name| name.starts_with("wirecap"))
            .map(str::to_owned)
            .collect::<BTreeSet<_>>();
        if !ours.is_empty() {
            found.insert(name, ours);
        }
    }
    found
}

fn assert_drawn(heading: &str, found: &Arrows) {
    let drawn = drawn(heading);
    for name in found.keys().chain(drawn.keys()) {
        let found = found.get(name);
        let drawn = drawn.get(name);
        assert_eq!(
            found, drawn,
            "what {name} needs: in the code (left), in docs/crates.md (right)"
        );
    }
}
