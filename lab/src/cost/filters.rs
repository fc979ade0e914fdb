//! What a filter costs by its length and by what runs it, on a packet that it accepts as late as it
//! can.

use std::hint::black_box;
use std::time::Instant;

use wirecap::bpf::asm::{Assembler, Reg};
use wirecap::bpf::{Program, XDP_DROP, XDP_PASS};
use wirecap::filter::{
    CompiledFilter, Context, Filter, Interpreter, Libpcap, LibpcapFilter, XdpTarget,
};
use wirecap::savefile::LinkType;

use super::live::{Dispatched, load, verdict_program};
use super::{CostError, Effort, fastest};

const FRAME_BYTES: usize = 60;
/// How often a test run's program has the filter: the kernel gives a run's time in whole
/// nanoseconds.
const FILTERS_IN_PROGRAM: u32 = 8;

/// The WinPcap paper's filters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    /// IP only.
    Ip,
    /// One TCP port among five.
    Ports,
    /// Ten addresses and ten ports.
    AddressesAndPorts,
}

impl Kind {
    /// From the shortest to the longest.
    pub const ALL: [Self; 3] = [Self::Ip, Self::Ports, Self::AddressesAndPorts];

    /// In a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Ip => "IP only",
            Self::Ports => "one port among five",
            Self::AddressesAndPorts => "10 addresses, 10 ports",
        }
    }

    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Ip => "ip",
            Self::Ports => "ports",
            Self::AddressesAndPorts => "addresses_and_ports",
        }
    }

    fn expression(self) -> String {
        let any = |items: Vec<String>| items.join(" or ");
        let ports =
            |count: u16| any((1..=count).map(|port| format!("tcp port {}", port * 1000)).collect());
        match self {
            Self::Ip => "ip".to_owned(),
            Self::Ports => ports(5),
            Self::AddressesAndPorts => {
                let hosts = any((1..=10).map(|host| format!("host 10.1.1.{host}")).collect());
                format!("({hosts}) and ({})", ports(10))
            }
        }
    }

    /// A TCP segment that the filter accepts at its last comparison.
    fn frame(self) -> [u8; FRAME_BYTES] {
        let (host, port): (u8, u16) = match self {
            Self::Ip | Self::Ports => (1, 5000),
            Self::AddressesAndPorts => (10, 10_000),
        };
        let mut frame = [0; FRAME_BYTES];
        frame[12..14].copy_from_slice(&[8, 0]);
        (frame[14], frame[23]) = (0x45, 6);
        frame[26..34].copy_from_slice(&[10, 0, 0, 1, 10, 1, 1, host]);
        frame[34..36].copy_from_slice(&1u16.to_be_bytes());
        frame[36..38].copy_from_slice(&port.to_be_bytes());
        frame
    }
}

/// What runs a filter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Compiler {
    /// libpcap's interpreter.
    Libpcap,
    /// Our interpreter.
    Interpreter,
    /// Our machine code.
    MachineCode,
    /// The kernel, as a part of the XDP program.
    Program,
}

impl Compiler {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::Libpcap, Self::Interpreter, Self::MachineCode, Self::Program];

    /// In a few words.
    pub fn words(self) -> &'static str {
        match self {
            Self::Libpcap => "libpcap",
            Self::Interpreter => "our interpreter",
            Self::MachineCode => "our machine code",
            Self::Program => "the XDP program",
        }
    }

    pub(super) fn key(self) -> &'static str {
        match self {
            Self::Libpcap => "libpcap",
            Self::Interpreter => "interpreter",
            Self::MachineCode => "machine_code",
            Self::Program => "program",
        }
    }
}

/// Everything that runs a filter, ready to be measured.
#[derive(Debug)]
pub(super) struct Forms {
    frame: [u8; FRAME_BYTES],
    libpcap: LibpcapFilter,
    interpreter: Interpreter,
    machine_code: CompiledFilter,
    /// Passes what the filter accepts [`FILTERS_IN_PROGRAM`] times, and drops what it does not.
    program: Program,
    /// Passes everything.
    bare: Program,
}

impl Forms {
    pub(super) fn of(kind: Kind) -> Result<Self, CostError> {
        let filter = Filter::compile(&kind.expression(), LinkType::ETHERNET, 0)?;
        let libpcap = Libpcap::get()?.prepare(&filter).expect("the filters ask nothing of Linux");
        Ok(Self {
            frame: kind.frame(),
            libpcap,
            interpreter: Interpreter::new(&filter)?,
            machine_code: CompiledFilter::new(&filter)?,
            program: program(&filter)?,
            bare: verdict_program(XDP_PASS)?,
        })
    }

    /// Nanoseconds per packet.
    pub(super) fn time(&self, compiler: Compiler, effort: &Effort) -> Result<f64, CostError> {
        let wire_len = FRAME_BYTES as u32;
        let context = Context::default();
        let loop_over = |matches: &dyn Fn(&[u8]) -> u32| self.time_loop(effort.loops, matches);

        match compiler {
            Compiler::Libpcap => loop_over(&|frame| self.libpcap.matches(frame, wire_len)),
            Compiler::Interpreter => {
                loop_over(&|frame| self.interpreter.matches(frame, wire_len, &context))
            }
            Compiler::MachineCode => {
                loop_over(&|frame| self.machine_code.matches(frame, wire_len, &context))
            }
            Compiler::Program => self.time_program(effort),
        }
    }

    fn time_program(&self, effort: &Effort) -> Result<f64, CostError> {
        let bare = run_time(&self.bare, &self.frame, effort)?;
        let filters = run_time(&self.program, &self.frame, effort)?;
        Ok((filters - bare) / f64::from(FILTERS_IN_PROGRAM))
    }

    fn time_loop(&self, loops: u32, matches: &dyn Fn(&[u8]) -> u32) -> Result<f64, CostError> {
        let part = || {
            let begin = Instant::now();
            let accepted = (0..loops).filter(|_| matches(black_box(&self.frame)) > 0).count();
            let nanos = begin.elapsed().as_nanos();
            assert_eq!(accepted, loops as usize, "every packet is one that the filter accepts");
            Ok(nanos as f64 / f64::from(loops))
        };
        fastest(part)
    }
}

fn program(filter: &Filter) -> Result<Program, CostError> {
    let mut asm = Assembler::new();
    let reject = asm.label();
    asm.mov(Reg::R6, Reg::R1);
    let target = XdpTarget { context: Reg::R6, reject, multi_buffer: true, address: None };
    (0..FILTERS_IN_PROGRAM).try_for_each(|_| filter.emit_xdp(&mut asm, &target))?;
    asm.mov(Reg::R0, XDP_PASS).exit().bind(reject).mov(Reg::R0, XDP_DROP).exit();
    Ok(load(&asm.finish().expect("every label is bound once, and near"))?)
}

/// Nanoseconds of a run in the kernel, whole ones.
fn run_time(program: &Program, frame: &[u8], effort: &Effort) -> Result<f64, CostError> {
    let run = program.test_run(frame, effort.loops)?;
    assert_eq!(
        run.verdict,
        XDP_PASS.cast_unsigned(),
        "every packet is one that the program passes"
    );
    Ok(f64::from(run.duration_ns))
}

/// Programs that do nothing, alone and behind the dispatcher.
#[derive(Debug)]
pub(super) struct BarePrograms {
    alone: Program,
    dispatched: Dispatched,
}

impl BarePrograms {
    pub(super) fn new() -> Result<Self, CostError> {
        Ok(Self { alone: verdict_program(XDP_PASS)?, dispatched: Dispatched::new(XDP_PASS)? })
    }

    /// Nanoseconds of a run of the program alone.
    pub(super) fn time_alone(&self, effort: &Effort) -> Result<f64, CostError> {
        run_time(&self.alone, &[0; FRAME_BYTES], effort)
    }

    /// Nanoseconds of a run behind the dispatcher.
    pub(super) fn time_dispatched(&self, effort: &Effort) -> Result<f64, CostError> {
        run_time(&self.dispatched.dispatcher, &[0; FRAME_BYTES], effort)
    }
}
