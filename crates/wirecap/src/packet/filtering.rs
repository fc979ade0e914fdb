//! Filters of an interface's rings: in the kernel if it decides exactly as libpcap, otherwise in
//! user space.

use std::io;
use std::sync::Arc;

use libc::sock_filter;

use crate::device::{Device, SPECIAL_LINKS};
use crate::error::FilterChangeError;
use crate::filter::{ClassicInsn, Filter, SocketForm, Unsupported, Unsure};
use crate::packet::SNAP_BYTES_MIN;
use crate::packet::ring::PacketRing;
use crate::packet::steering;
use crate::sieve::{Check, UserFilter};
use crate::sys::wait_for_running_programs;

/// The maximum number of instructions before a filter, which select packets by direction and queue.
const SELECTION_INSNS: usize = 6;
/// The maximum number of further instructions of a socket of all interfaces, which select packets
/// by interface: two loads, and two for each interface or link type that it rejects.
pub(super) const ADMISSION_INSNS: usize = 2 + 2 * (EXCLUDED_MAX + SPECIAL_LINKS.len() + 2);
/// The maximum number of interfaces that a socket of all interfaces leaves to other sockets.
pub(super) const EXCLUDED_MAX: usize = 64;

/// A socket filter, and the part for user space.
#[derive(Debug, Clone)]
pub(crate) struct Filtering {
    program: Vec<sock_filter>,
    check: Check,
    /// The program rejects packets.
    filters: bool,
    /// Why user space filters every packet instead of the kernel.
    pub(crate) in_user_space: Option<String>,
}

impl Filtering {
    /// Lets nothing through.
    pub(crate) fn deaf() -> Self {
        Self { program: steering::nothing(), ..Self::none(0) }
    }

    /// Lets everything through.
    pub(crate) fn none(snap_len: u32) -> Self {
        let program = steering::everything(snap_len.max(SNAP_BYTES_MIN));
        Self { program, check: Check::Nothing, filters: false, in_user_space: None }
    }

    /// Starts receiving on `rings`, which have rejected all packets so far.
    pub(crate) fn begin(&self, rings: &[Arc<PacketRing>]) -> io::Result<()> {
        rings.iter().try_for_each(|ring| ring.listen(&self.program, self.filters))
    }

    /// Has the kernel run `filter` if it does that as libpcap would, else user space.
    fn of(filter: &Filter, device: &Device, snap_len: u32) -> Result<Self, Unsupported> {
        if filter.matches_everything() {
            return Ok(Self::none(snap_len));
        }
        let before = SELECTION_INSNS + if device.is_all() { ADMISSION_INSNS } else { 0 };
        match filter.for_socket(snap_len.max(SNAP_BYTES_MIN), before) {
            Ok(form) => Ok(Self::by(form, device)),
            Err(reason) => Self::in_user_space(filter, device, reason.to_string()),
        }
    }

    fn in_user_space(
        filter: &Filter,
        device: &Device,
        reason: String,
    ) -> Result<Self, Unsupported> {
        let form = filter.beside_socket()?;
        Ok(Self { filters: false, in_user_space: Some(reason), ..Self::by(form, device) })
    }

    fn by(form: SocketForm, device: &Device) -> Self {
        let user = |compiled| UserFilter::of(compiled, device);
        let check = match form.unsure {
            Unsure::Nothing => Check::Nothing,
            Unsure::Tagged(filter) => Check::Tagged(user(filter)),
            Unsure::Everything(filter) => Check::Everything(user(filter)),
        };
        let program = form.program.into_iter().map(socket_insn).collect();
        Self { program, check, filters: true, in_user_space: None }
    }

    /// Puts `filter` in place of `before` on all of `rings`, or leaves all as it was.
    pub(crate) fn replace(
        before: &Self,
        filter: &Filter,
        rings: &[Arc<PacketRing>],
        device: &Device,
        snap_len: u32,
    ) -> Result<Self, FilterChangeError> {
        let unsupported =
            |source| FilterChangeError::Unsupported { interface: device.name.clone(), source };
        let next = Self::of(filter, device, snap_len).map_err(unsupported)?;
        let installed = match next.install(before, filter, rings, device) {
            Ok(()) => Ok(next),
            // Too long for this kernel, or rejected: it accepts no loads of scratch memory that may
            // be uninitialised.
            Err(error) if is_refusal(&error) && next.filters => {
                let next =
                    Self::in_user_space(filter, device, format!("the kernel rejects it ({error})"))
                        .map_err(unsupported)?;
                next.install(before, filter, rings, device).map(|()| next)
            }
            Err(error) => Err(error),
        };

        installed
            .map_err(|source| FilterChangeError::Socket { interface: device.name.clone(), source })
    }

    /// Every packet that matches both `filter` and the previous one is captured, once.
    fn install(
        &self,
        before: &Self,
        filter: &Filter,
        rings: &[Arc<PacketRing>],
        device: &Device,
    ) -> io::Result<()> {
        // Waiting packets were filtered by the previous filter, if at all.
        if let Ok(filter) = UserFilter::new(filter, device) {
            rings.iter().for_each(|ring| ring.begin_change(filter.clone()));
        }

        let attached = rings.iter().try_for_each(|ring| ring.listen(&self.program, self.filters));
        let now = if attached.is_ok() { self } else { before };

        if attached.is_err() {
            // The previous program is accepted again.
            rings.iter().try_for_each(|ring| ring.listen(&before.program, before.filters))?;
        }

        wait_for_running_programs();
        rings.iter().for_each(|ring| ring.settle(now.check.clone()));

        attached
    }
}

/// Whether the kernel rejects the program (and not the socket).
fn is_refusal(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINVAL | libc::ENOMEM))
}

/// An instruction as the kernel's headers declare it.
pub(crate) fn socket_insn(ClassicInsn { code, jt, jf, k }: ClassicInsn) -> sock_filter {
    sock_filter { code, jt, jf, k }
}
