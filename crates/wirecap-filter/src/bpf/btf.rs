//! The kernel's type information (BTF), as far as needed to call a kernel function by name.
//!
//! The format is described in the kernel's documentation, `bpf/btf.rst`.

use std::fs;
use std::io;

use super::BpfError;

const KERNEL: &str = "/sys/kernel/btf/vmlinux";
const MAGIC: u16 = 0xeb9f;
/// Length of the common header of a type: its name, its kind, and a size or another type.
const TYPE_BYTES: usize = 12;
const KIND_FUNC: u32 = 12;

/// The number by which a program calls the kernel function `name`.
///
/// # Errors
///
/// [`BpfError`] if the kernel provides no type information or has no such function.
pub fn kernel_function(name: &str) -> Result<u32, BpfError> {
    let found = fs::read(KERNEL).and_then(|btf| {
        let missing =
            || io::Error::new(io::ErrorKind::NotFound, format!("{KERNEL} does not name it"));
        function(&btf, name).ok_or_else(missing)
    });
    found.map_err(|source| BpfError::new("find the kernel's function", name, source))
}

/// The number of the function `name` in `btf`.
fn function(btf: &[u8], name: &str) -> Option<u32> {
    if u16::from_ne_bytes(btf.get(..2)?.try_into().ok()?) != MAGIC {
        return None;
    }

    let header_bytes = word(btf, 4)?;
    let section = |offset, len| btf.get(header_bytes..)?.get(offset..)?.get(..len);
    let types = section(word(btf, 8)?, word(btf, 12)?)?;
    let strings = section(word(btf, 16)?, word(btf, 20)?)?;
    let mut offset = 0;
    let mut number = 1;

    while offset < types.len() {
        let info = word(types, offset + 4)? as u32;
        let kind = info >> 24 & 0x1f;
        let entries = info as usize & 0xffff;
        if kind == KIND_FUNC && text(strings, word(types, offset)?)? == name.as_bytes() {
            return Some(number);
        }
        offset += TYPE_BYTES + bytes_behind(kind, entries)?;
        number += 1;
    }

    None
}

/// The number of bytes after the header of a type of this kind; `None` for an unknown kind.
fn bytes_behind(kind: u32, entries: usize) -> Option<usize> {
    Some(match kind {
        // pointer, forward declaration, typedef, volatile, const, restrict, function, float, type
        // tag
        2 | 7..=11 | KIND_FUNC | 16 | 18 => 0,
        // integer, variable, declaration tag
        1 | 14 | 17 => 4,
        // array
        3 => 12,
        // struct, union, data section, 64-bit enum
        4 | 5 | 15 | 19 => 12 * entries,
        // enum, prototype
        6 | 13 => 8 * entries,
        _ => return None,
    })
}

fn word(bytes: &[u8], offset: usize) -> Option<usize> {
    let word = bytes.get(offset..offset + 4)?;
    Some(u32::from_ne_bytes(word.try_into().ok()?) as usize)
}

/// The NUL-terminated string at `offset`.
fn text(strings: &[u8], offset: usize) -> Option<&[u8]> {
    strings.get(offset..)?.split(|&byte| byte == 0).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRINGS: &[u8] = b"\0int\0first\0second\0";

    /// An integer, a struct of two members, and two functions.
    fn btf() -> Vec<u8> {
        let types: [u32; 4 + 9 + 3 + 3] = [
            1,
            1 << 24,
            4,
            32, // integer
            0,
            4 << 24 | 2,
            8,
            1,
            1,
            0,
            1,
            1,
            32, // struct
            5,
            12 << 24,
            1, // first
            11,
            12 << 24,
            1, // second
        ];
        let mut btf = MAGIC.to_ne_bytes().to_vec();
        btf.extend([1, 0]);

        let types_bytes = size_of_val(&types) as u32;
        for word in [24, 0, types_bytes, types_bytes, STRINGS.len() as u32] {
            btf.extend(u32::to_ne_bytes(word));
        }

        btf.extend(types.iter().flat_map(|word| word.to_ne_bytes()));
        btf.extend(STRINGS);

        btf
    }

    #[test]
    fn a_function_is_found_after_types_of_other_sizes() {
        assert_eq!(function(&btf(), "first"), Some(3));
        assert_eq!(function(&btf(), "second"), Some(4));
        assert_eq!(function(&btf(), "int"), None, "that is a type");
    }

    #[test]
    fn truncated_or_foreign_type_information_has_no_functions() {
        let btf = btf();
        for length in 0..btf.len() - STRINGS.len() {
            assert_eq!(function(&btf[..length], "second"), None);
        }
        assert_eq!(function(&[0; 64], "first"), None);
    }

    #[test]
    fn a_missing_function_is_named() {
        let error = kernel_function("wirecap_no_such_function").unwrap_err();
        assert!(error.to_string().contains("wirecap_no_such_function"), "{error}");
    }
}
