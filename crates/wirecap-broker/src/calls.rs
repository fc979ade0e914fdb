//! The calls that programs may make. Without these rules a program could read all of the kernel's memory, and so the host's
//! secrets, for the process that requests it.

use std::sync::OnceLock;

use wirecap_filter::bpf::asm::Helper;
use wirecap_filter::bpf::kernel_function;

/// Bytes of an instruction.
const INSN_BYTES: usize = 8;
/// `BPF_CALL` of the classes `BPF_JMP` and `BPF_JMP32`.
const CALL: [u8; 2] = [0x85, 0x86];
/// As [`CALL`], to an address in a register.
const CALL_REGISTER: [u8; 2] = [0x8d, 0x8e];
/// `BPF_LD | BPF_DW | BPF_IMM`.
const LOAD_CONSTANT: u8 = 0x18;
/// A number, a map, and the address of a map's value. Other constants are addresses in the kernel.
const CONSTANTS: [u8; 3] = [0, 1, 2];
/// Values of the source register field: a helper, and a kernel function.
const TO_HELPER: u8 = 0;
const TO_KERNEL: u8 = 2;

/// The helpers that the engine's programs call: for packets, maps and clocks.
const HELPERS: [Helper; 9] = [
    Helper::MapLookup,
    Helper::RandomU32,
    Helper::CpuId,
    Helper::TailCall,
    Helper::RedirectMap,
    Helper::XdpAdjustMeta,
    Helper::XdpFrameLen,
    Helper::XdpLoadBytes,
    Helper::KtimeTaiNs,
];
/// Returns the device's timestamp of a packet.
const DEVICE_CLOCK: &str = "bpf_xdp_metadata_rx_timestamp";

/// The call or access of a program that none of wirecap's programs makes; `None` if there is none.
///
/// The second half of a constant is checked as an instruction too: its code is 0, or the kernel rejects the program.
pub(crate) fn forbidden(code: &[u8]) -> Option<String> {
    let (insns, _) = code.as_chunks::<INSN_BYTES>();
    insns.iter().find_map(|insn| {
        let [opcode, registers, _, _, constant @ ..] = *insn;
        let (source, constant) = (registers >> 4, i32::from_ne_bytes(constant));
        match opcode {
            LOAD_CONSTANT if !CONSTANTS.contains(&source) => {
                Some(format!("a program with a constant of kind {source}"))
            }
            _ if CALL_REGISTER.contains(&opcode) => Some("a program that calls an address".to_owned()),
            _ if !CALL.contains(&opcode) => None,
            _ if source == TO_HELPER && HELPERS.iter().any(|helper| *helper as i32 == constant) => None,
            _ if source == TO_KERNEL && device_clock() == Some(constant.cast_unsigned()) => None,
            _ => Some(format!(
                "a program with call {constant} of kind {source} (0: helper, 1: own function, 2: kernel function)"
            )),
        }
    })
}

/// The number of the only permitted kernel function, if the kernel has it.
fn device_clock() -> Option<u32> {
    static NUMBER: OnceLock<Option<u32>> = OnceLock::new();
    *NUMBER.get_or_init(|| kernel_function(DEVICE_CLOCK).ok())
}

#[cfg(test)]
mod tests {
    use wirecap_filter::bpf::asm::{Assembler, Insn, Reg, to_bytes};

    use super::*;

    fn calling(helper: Helper) -> Vec<u8> {
        let mut program = Assembler::new();
        program.call(helper).mov(Reg::R0, 0).exit();
        to_bytes(&program.finish().unwrap())
    }

    #[test]
    fn programs_call_helpers_for_packets_maps_and_clocks_only() {
        assert_eq!(forbidden(&calling(Helper::RedirectMap)), None);
        for helper in [Helper::ProbeReadKernelStr, Helper::Redirect] {
            assert!(forbidden(&calling(helper)).is_some(), "{helper:?}");
        }
        let insn = |opcode, source: u8, constant| {
            Insn { opcode, registers: source << 4, offset: 0, constant }.to_bytes()
        };
        let helper = Helper::MapLookup as i32;
        assert_eq!(forbidden(&insn(0x85, 0, helper)), None);
        // Calls of a function of the program, of a kernel function, and of an address.
        for (opcode, source) in [(0x85, 1), (0x85, 2), (0x8d, 0)] {
            assert!(forbidden(&insn(opcode, source, helper)).is_some(), "{opcode:#x} {source}");
        }
        // The address of a kernel variable.
        assert!(forbidden(&insn(LOAD_CONSTANT, 3, 7)).is_some());
        assert_eq!(forbidden(&[insn(LOAD_CONSTANT, 1, 7), insn(0, 0, 0)].concat()), None);
    }
}
