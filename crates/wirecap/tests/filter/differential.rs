//! Every way to run a filter, against libpcap's: not one difference.

use wirecap::filter::{Context, Filter, Interpreter, Libpcap, LibpcapFilter};
use wirecap::savefile::LinkType;

use crate::choices::Choices;
use crate::expressions::{expressions, winpcap_filters};
use crate::packets::{Packet, frame, noise, traces};

/// All that run one filter.
struct Runners {
    libpcap: LibpcapFilter,
    interpreter: Interpreter,
}

impl Runners {
    fn new(filter: &Filter) -> Self {
        let libpcap = Libpcap::get().expect("libpcap is needed for this test");
        Self {
            libpcap: libpcap.prepare(filter).expect("no extensions"),
            interpreter: Interpreter::new(filter).expect("no extensions"),
        }
    }

    fn check(&self, filter: &Filter, packet: &Packet) -> u32 {
        let Packet { data, wire_len } = packet;
        let expected = self.libpcap.matches(data, *wire_len);
        let ours = self.interpreter.matches(data, *wire_len, &Context::default());
        assert_eq!(ours, expected, "interpreter: {packet:?}\n{:?}\n{filter}", filter.expression());
        expected
    }
}

fn realistic() -> Vec<String> {
    let mut all = expressions(5, 1200);
    all.extend(winpcap_filters());
    all
}

fn compile(expression: &str, link_type: LinkType) -> Filter {
    Filter::compile(expression, link_type, 0).unwrap_or_else(|error| panic!("{error}"))
}

#[test]
fn a_thousand_expressions_decide_as_libpcap_does() {
    let mut choices = Choices::from_seed(6, 1 << 20);
    let packets: Vec<Packet> = (0..600).map(|_| frame(&mut choices)).collect();
    let (mut matched, mut rejected) = (0, 0);
    for expression in realistic() {
        let filter = compile(&expression, LinkType::ETHERNET);
        let runners = Runners::new(&filter);
        let wanted = packets.iter().filter(|packet| runners.check(&filter, packet) > 0).count();
        matched += usize::from(wanted > 0);
        rejected += usize::from(wanted < packets.len());
    }
    // A comparison of nothing but rejections would show nothing.
    assert!(matched > 900 && rejected > 900, "{matched} filters matched something, {rejected} not all");
}

#[test]
fn the_traces_are_decided_as_libpcap_does() {
    for link_type in [LinkType::ETHERNET, LinkType::RAW, LinkType::LINUX_SLL] {
        let packets = traces(link_type, 20);
        for expression in realistic().iter().step_by(7) {
            // Not every link type has addresses and tags.
            let Ok(filter) = Filter::compile(expression, link_type, 0) else { continue };
            let runners = Runners::new(&filter);
            for packet in packets.iter().chain([&noise(&mut Choices::from_seed(7, 300))]) {
                runners.check(&filter, packet);
            }
        }
    }
}
