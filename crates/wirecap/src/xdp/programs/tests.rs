//! Loads the programs without the capabilities with which the verifier trusts a program, and runs
//! them on test frames.

use wirecap_filter::capability::{self, CapabilitySet};
use wirecap_testbed::privileged;

use super::*;
use crate::device::{Device, DeviceSummary};
use crate::filter::LinkType;
use crate::time::Timestamps;

/// Number of queues in the maps.
const QUEUES_MAX: u32 = 128;
const TRUSTED: CapabilitySet = CapabilitySet::PERFMON.union(CapabilitySet::SYS_ADMIN);

/// The maps of a plan.
struct Maps {
    array: Map,
    sockets: Map,
    counts: Map,
    failed: Map,
}

impl Maps {
    fn new() -> Self {
        let create =
            |kind, value_bytes, entries| Map::create(kind, "test", value_bytes, entries).unwrap();
        Self {
            array: create(MapKind::ProgArray, 4, QUEUES_MAX),
            sockets: create(MapKind::Xskmap, 4, QUEUES_MAX * 4),
            counts: create(MapKind::PercpuArray, (COUNTS * size_of::<u64>()) as u32, QUEUES_MAX),
            failed: Map::create_mappable("test", 8, 1).unwrap(),
        }
    }

    /// A plan without a filter and timestamps.
    fn plan<'a>(&'a self, steering: &'a Steering) -> Plan<'a> {
        Plan {
            array: &self.array,
            sockets: &self.sockets,
            steering,
            names_queues: false,
            counts: &self.counts,
            filter: None,
            own: None,
            stamping: None,
        }
    }

    fn counts_of_queue_0(&self) -> Vec<u64> {
        self.counts.lookup_sums(0).unwrap()
    }
}

fn compiled(expression: &str) -> Filter {
    Filter::compile(expression, LinkType::ETHERNET, 0).expect("libpcap is needed")
}

fn filtering(filter: &Filter) -> FilterPlan<'_> {
    FilterPlan { filter, address: Some([2, 0, 0, 0, 0, 1]), verdict: XDP_PASS }
}

#[test]
fn every_form_of_program_loads_without_perfmon() {
    if !privileged() {
        return;
    }

    let maps = Maps::new();
    let device = Device::find("lo").unwrap();
    let clocks = [Timestamps::Packet, Timestamps::Batch]
        .map(|kind| Clock::new(kind, &DeviceSummary::from(&device)).unwrap());
    assert_eq!(clocks[1].timestamps(), Timestamps::Batch);

    let expressions = [
        "udp",
        "port 53",
        "tcp[13] & 2 != 0 and host 10.0.0.1",
        "tcp[((tcp[12] & 0xf0) >> 2):4] = 0x47455420",
        "ip6 and icmp6",
        "vlan 3 and udp port 53",
        "greater 100 or ip[2:2] - ((ip[0] & 0xf) << 2) = 3",
    ];
    let filters: Vec<_> = expressions.iter().map(|expression| compiled(expression)).collect();
    let steerings = [(1, 1), (1, 4), (3, 4), (4, 4), (16, 64), (QUEUES_MAX, QUEUES_MAX as usize)]
        .map(|(queues, rings)| Steering::new((0..queues).collect(), rings));

    for steering in &steerings {
        for names_queues in [false, true] {
            for filter in filters.iter().map(Some).chain([None]) {
                for clock in clocks.iter().map(Some).chain([None]) {
                    let plan = Plan {
                        names_queues,
                        filter: filter.map(filtering),
                        stamping: clock.map(|clock| Stamping { clock, failed: &maps.failed }),
                        ..maps.plan(steering)
                    };
                    let loaded = capability::without(TRUSTED, || {
                        assert!(!capability::has(CapabilitySet::PERFMON));
                        load(&plan)
                    });
                    loaded
                        .unwrap()
                        .unwrap_or_else(|error| panic!("{steering:?} {filter:?}: {error:?}"));
                }
            }
        }
    }

    capability::without(TRUSTED, || {
        (load_dispatcher(&maps.array).unwrap(), load_pass(&maps.array).unwrap())
    })
    .unwrap();
}

#[test]
fn a_packet_is_counted_for_its_queue() {
    if !privileged() {
        return;
    }

    // Test runs arrive on queue 0, which the last plan does not know: the interface got it later.
    let udp = compiled("udp");

    for queues in [vec![0], (0..4).collect(), (0..QUEUES_MAX).collect(), vec![3, 5, 9]] {
        let maps = Maps::new();
        let steering = Steering::new(queues, 1);
        let plan = Plan { filter: Some(filtering(&udp)), ..maps.plan(&steering) };
        let program = load(&plan).unwrap();
        let mut frame = [0; 60];
        assert_eq!(program.test_run(&frame, 10).unwrap().verdict, XDP_PASS as u32);
        assert_eq!(maps.counts_of_queue_0(), [10, 0, 0], "not wanted: {steering:?}");

        (frame[12], frame[14], frame[23]) = (8, 0x45, 17);
        assert_eq!(program.test_run(&frame, 7).unwrap().verdict, XDP_PASS as u32);
        assert_eq!(maps.counts_of_queue_0(), [10, 7, 0], "no socket: {steering:?}");
    }
}

#[test]
fn the_search_finds_the_key_of_every_queue() {
    if !privileged() {
        return;
    }

    let maps = Maps::new();

    for queues in [vec![0], vec![7], vec![0, 1], vec![2, 3, 5, 7, 11, 13, 17], (0..9).collect()] {
        let steering = Steering::new(queues.clone(), 1);
        let keys = keys(&maps.plan(&steering)).unwrap();
        let numbered: Vec<_> = (0..).zip(queues.iter().copied()).collect();

        for number in 0..20 {
            let mut program = Assembler::new();
            let rare = RareKey { wanted: program.label(), found: program.label() };
            program.mov(Reg::R2, number);
            search_key(&mut program, &keys, &numbered, rare, true);
            program.bind(rare.found).load(Size::Word, Reg::R0, Reg::R2, 0).exit();
            program.bind(rare.wanted).mov(Reg::R0, 1000).exit();

            let code = program.finish().unwrap();
            let program = load_code("search", &code, LoadOptions::default()).unwrap();
            let expected = if queues.contains(&(number as u32)) { number as u32 } else { 1000 };
            assert_eq!(program.test_run(&[0; 60], 1).unwrap().verdict, expected, "{queues:?}");
        }
    }
}
