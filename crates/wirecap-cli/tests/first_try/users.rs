//! The same as a normal user, with each right that the guide describes.

use wirecap_testbed::{privileged, skip};

use crate::day::{As, Day};
use crate::{files, live};

/// The guide's page about rights.
const GUIDE: &str = include_str!("../../../../docs/guide/rights.md");

/// Calls setcap, as root, on the day's program. Prints SKIP if it is not installed.
fn set_rights(day: &Day, command: &str) -> bool {
    let setcap = command.strip_prefix("sudo ").expect("only root may do it");
    if day.types_as(As::Root, "command -v setcap").status != Some(0) {
        skip("setcap is not installed");
        return false;
    }
    day.types_as(As::Root, setcap).assert_success();
    true
}

#[test]
fn a_user_without_rights_reads_files_and_is_told_how_to_capture() {
    if !privileged() {
        return;
    }
    let day = Day::of_user(As::User(""));
    files::type_all(&day);
    let mut advice = String::new();
    for line in [
        "wirecap -i a1 -c 3",
        "wirecap -i a1 -c 3 -w x.pcap",
        "wirecap count -i a1",
        "wirecap stats -i a1",
        "wirecap forward a1 b1",
    ] {
        let refused = day.types(line);
        assert!(refused.stderr.contains("CAP_NET_RAW"), "{refused:#?}");
        advice = refused.advice();
    }
    for line in ["wirecap replay f.pcap -i a1", "wirecap generate -i a1 -c 1"] {
        let refused = day.types(line);
        assert!(
            refused.status == Some(1) && refused.stderr.contains("CAP_NET_RAW"),
            "{refused:#?}"
        );
    }
    let refused = day.types("wirecap dedicate a1");
    assert!(refused.stderr.contains("sudo wirecap dedicate a1"), "{refused:#?}");

    if set_rights(&day, &advice) {
        let _sending = day.sending(&day.pairs[0].sender);
        day.types_as(As::Login, "wirecap -i a1 -c 3").assert_lines(3);
        day.types_as(As::Login, "wirecap -i a1 -c 3 -w x.pcap").assert_success();
        day.assert_live("x.pcap", 3, 1, 1000);
    }
}

#[test]
fn a_user_with_cap_net_raw_alone_captures_sends_and_forwards() {
    if !privileged() {
        return;
    }
    let day = Day::of_user(As::User(",+net_raw"));
    live::type_all(&day);
    // The engine xdp needs more, and the message names it.
    let refused = day.types("wirecap capture -i a1 --engine xdp -c 3 -w x.pcap");
    let advice = refused.advice();
    assert!(
        refused.stderr.contains("CAP_BPF") && !refused.stderr.contains("locked memory"),
        "{refused:#?}"
    );
    if set_rights(&day, &advice) {
        let _sending = day.sending(&day.pairs[0].sender);
        day.types_as(As::Login, "wirecap capture -i a1 --engine xdp -c 3 -w x.pcap")
            .assert_success();
        day.assert_live("x.pcap", 3, 1, 1000);
    }
}

#[test]
fn the_recipe_of_the_guide_is_enough_for_every_command() {
    if !privileged() {
        return;
    }
    let day = Day::of_user(As::Login);
    let recipe =
        GUIDE.lines().find(|line| line.starts_with("sudo setcap ")).expect("the guide has it");
    let recipe = recipe.replace("/usr/local/bin/wirecap", day.program().to_str().unwrap());
    if !set_rights(&day, &recipe) {
        return;
    }
    files::shown(&day);
    live::type_all(&day);
    let sending = day.sending(&day.pairs[0].sender);
    day.types("wirecap capture -i a1 --engine xdp -c 5 -w x.pcap").assert_success();
    day.assert_live("x.pcap", 5, 1, 1000);
    drop(sending);
    live::forwarded(&day, "wirecap forward b1 c1 --engine xdp -c 200 --no-control");
}
