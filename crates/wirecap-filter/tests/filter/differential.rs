//! All forms of a filter must return the same as libpcap's.

use wirecap_filter::LinkType;
use wirecap_filter::{ClassicInsn, CompiledFilter, Filter, Interpreter, Libpcap, LibpcapFilter};
use wirecap_testbed::privileged;

use crate::choices::Choices;
use crate::expressions::{expressions, winpcap_filters};
use crate::kernel::{self, WAYS, Way, XdpFilter};
use crate::packets::{Packet, frame, jumbo, noise, traces};
use crate::programs::{Contents, program};

/// The length of an Ethernet header, the minimum length for the kernel's test run.
const TEST_RUN_BYTES_MIN: usize = 14;
/// Maximum length of one fragment in a test run.
const FRAGMENT_BYTES: usize = 3400;

/// All forms of one filter.
struct Runners {
    libpcap: Option<LibpcapFilter>,
    interpreter: Interpreter,
    compiled: CompiledFilter,
    kernel: Vec<(Way, XdpFilter)>,
}

impl Runners {
    fn new(filter: &Filter, in_kernel: bool) -> Self {
        let libpcap = Libpcap::get().expect("libpcap is needed for this test");
        let kernel = WAYS.into_iter().filter_map(|way| Some((way, XdpFilter::new(filter, way)?)));
        let compiled = CompiledFilter::new(filter).expect("no extensions");
        assert!(
            compiled.is_machine_code()
                || !cfg!(target_arch = "x86_64")
                || filter.program().len() > 1000
        );
        Self {
            libpcap: libpcap.prepare(filter),
            interpreter: Interpreter::new(filter).expect("no extensions"),
            compiled,
            kernel: if in_kernel { kernel.collect() } else { Vec::new() },
        }
    }

    fn check(&self, filter: &Filter, packet: &Packet) -> u32 {
        let (verdict, difference) = self.compare(packet);
        let difference = difference.unwrap_or_default();
        assert!(
            difference.is_empty(),
            "{difference}: {packet:02x?}\n{:?}\n{filter}",
            filter.expression()
        );
        verdict
    }

    /// The verdict, and a description of the difference if there is one.
    fn compare(&self, packet: &Packet) -> (u32, Option<String>) {
        let Packet { data, wire_len } = packet;
        let context = kernel::context(data);
        let verdict = self.interpreter.matches(data, *wire_len, &context);
        let differs = |who: String, other: u32| {
            (other != verdict).then(|| format!("{who} says {other}, the interpreter {verdict}"))
        };
        let libpcap = self
            .libpcap
            .as_ref()
            .and_then(|libpcap| differs("libpcap".to_owned(), libpcap.matches(data, *wire_len)));
        let compiled =
            || differs("machine code".to_owned(), self.compiled.matches(data, *wire_len, &context));
        let kernel = || {
            // Frames in the kernel are never truncated.
            let whole = *wire_len as usize == data.len() && data.len() >= TEST_RUN_BYTES_MIN;
            let fits = |way: &Way| whole && (way.multi_buffer || data.len() <= FRAGMENT_BYTES);
            let mut kernel = self.kernel.iter().filter(|(way, _)| fits(way));
            kernel.find_map(|(way, xdp)| differs(format!("{way:?}"), xdp.matches(data)))
        };
        (verdict, libpcap.or_else(compiled).or_else(kernel))
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

fn frames(seed: u64, count: usize) -> Vec<Packet> {
    let mut choices = Choices::from_seed(seed, count * 2048);
    (0..count).map(|_| frame(&mut choices)).collect()
}

#[test]
fn a_thousand_expressions_decide_as_libpcap_does() {
    let packets = frames(6, 600);
    let mut matched = 0;
    let mut rejected = 0;
    for expression in realistic() {
        let filter = compile(&expression, LinkType::ETHERNET);
        let runners = Runners::new(&filter, false);
        let wanted = packets.iter().filter(|packet| runners.check(&filter, packet) > 0).count();
        matched += usize::from(wanted > 0);
        rejected += usize::from(wanted < packets.len());
    }
    // Matches and rejections must both occur, otherwise the comparison proves nothing.
    assert!(
        matched > 900 && rejected > 900,
        "{matched} filters matched something, {rejected} not all"
    );
}

#[test]
fn a_thousand_expressions_decide_in_the_kernel_as_libpcap_does() {
    if !privileged() {
        return;
    }
    let packets = frames(8, 60);
    for expression in realistic() {
        let filter = compile(&expression, LinkType::ETHERNET);
        let runners = Runners::new(&filter, true);
        for packet in &packets {
            runners.check(&filter, packet);
        }
    }
}

#[test]
fn filters_decide_on_traces_as_libpcap_does() {
    for link_type in [LinkType::ETHERNET, LinkType::RAW, LinkType::LINUX_SLL] {
        let packets = traces(link_type, 20);
        for expression in realistic().iter().step_by(7) {
            // Not every link type has addresses and tags.
            let Ok(filter) = Filter::compile(expression, link_type, 0) else { continue };
            let runners = Runners::new(&filter, false);
            for packet in packets.iter().chain([&noise(&mut Choices::from_seed(7, 300))]) {
                runners.check(&filter, packet);
            }
        }
    }
}

#[test]
fn random_programs_decide_as_libpcap_does() {
    let mut choices = Choices::from_seed(9, 1 << 23);
    for round in 0..3000 {
        let insns_max = if round % 50 == 0 { 4000 } else { 60 };
        let contents =
            Contents { insns_max, slots_stored_first: true, extensions: false, far: true };
        let filter = program(&mut choices, contents);
        let runners = Runners::new(&filter, false);
        for _ in 0..10 {
            runners.check(&filter, &noise(&mut choices));
            runners.check(&filter, &frame(&mut choices));
        }
    }
    assert!(!choices.is_used_up());
}

#[test]
fn random_programs_decide_in_the_kernel_as_in_user_space() {
    if !privileged() {
        return;
    }
    let mut choices = Choices::from_seed(10, 1 << 23);
    let mut loaded = 0;
    for round in 0..2000 {
        let insns_max = if round % 50 == 0 { 600 } else { 60 };
        // Some filters that read beyond the maximum packet length are refused; none may be refused
        // at load time.
        let far = round >= 1500;
        let contents =
            Contents { insns_max, slots_stored_first: false, extensions: round % 2 == 0, far };
        let filter = program(&mut choices, contents);
        let mut runners = Runners::new(&filter, true);
        // In libpcap, scratch memory initially contains whatever was on the stack.
        runners.libpcap = None;
        loaded += if far { 0 } else { runners.kernel.len() };
        for _ in 0..5 {
            runners.check(&filter, &noise(&mut choices));
            runners.check(&filter, &frame(&mut choices));
        }
        runners.check(&filter, &jumbo(&mut choices));
    }
    assert!(!choices.is_used_up());
    assert_eq!(loaded, 1500 * WAYS.len(), "programs were refused");
}

#[test]
fn packet_metadata_are_the_same_in_all_forms() {
    if !privileged() {
        return;
    }
    let mut choices = Choices::from_seed(11, 1 << 18);
    let packets: Vec<Packet> = (0..200).map(|_| frame(&mut choices)).collect();
    // Each extension supported by user space and the kernel, and a byte of the network and
    // link-layer headers.
    for k in
        [0xffff_f000, 0xffff_f004, 0xffff_f008, 0xffff_f018, 0xffff_f028, 0xfff0_0005, 0xffe0_0005]
    {
        let program = [(0x01, 5), (0x28, k), (0x16, 0)];
        let insns = program.map(|(code, k)| ClassicInsn { code, jt: 0, jf: 0, k }).to_vec();
        let filter = Filter::from_program(insns, LinkType::ETHERNET).expect("it is sound");
        let runners = Runners::new(&filter, true);
        assert_eq!(runners.kernel.len(), WAYS.len(), "{filter}");
        let mut verdicts: Vec<u32> =
            packets.iter().map(|packet| runners.check(&filter, packet)).collect();
        verdicts.sort_unstable();
        verdicts.dedup();
        assert!(
            verdicts.len() > 1 || [0xffff_f008, 0xffff_f018, 0xffff_f028].contains(&k),
            "{filter}{verdicts:?}"
        );
    }
}

#[test]
fn cpu_and_random_numbers_are_available_only_in_the_kernel() {
    if !privileged() {
        return;
    }
    for (extension, is_plausible) in
        [(36, (|cpu| cpu < 4096) as fn(u32) -> bool), (56, |random| random != 0)]
    {
        let text = format!("2\n32 0 0 {}\n22 0 0 0", 0xffff_f000_u32 + extension);
        let filter = Filter::parse(&text, LinkType::ETHERNET).expect("it is sound");
        for way in WAYS {
            let xdp = XdpFilter::new(&filter, way).expect("an XDP program knows both");
            assert!(is_plausible(xdp.matches(&[0; 64])), "{filter}");
        }
    }
}
