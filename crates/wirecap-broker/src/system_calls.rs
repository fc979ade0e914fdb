//! The system-call filter of a recording process.
//!
//! It sees the numbers of a call, not what is behind an address: it can tell the request of an
//! ioctl(2), but not the interface of a bind(2). Therefore calls that take an address are not in
//! the list, except those of open files and of path names, which Landlock checks.
//!
//! `bind`, `connect` and `sendmsg`, which take an address of a socket, and `clone3`, which takes
//! flags in memory, are refused. With limited arguments are permitted:
//!
//! - `ioctl`: TCGETS, TIOCGWINSZ, FIONREAD, FIONBIO, FIOCLEX; SIOCGIFNAME, SIOCGIFINDEX,
//!   SIOCETHTOOL and SIOCGHWTSTAMP, which read without CAP_NET_ADMIN.
//! - `fcntl`: flags, duplicates, the capacity of a pipe; no owner or signal of a descriptor, no
//!   O_ASYNC.
//! - `prctl`: names of threads and of memory.
//! - `setsockopt`: rings, filters and fan-out of packet sockets, receiving rings of AF_XDP sockets,
//!   the receive buffer, notifications of netlink.
//! - `sendto`: without an address.
//! - `clone`: the flags with which the C library starts a thread. `clone3` fails with ENOSYS, and
//!   the C library uses `clone`.
//! - `tgkill`: threads of the process itself.
//! - `prlimit64`, `sched_setaffinity`, `sched_setscheduler`, `ioprio_set`: the calling thread, and
//!   only to read limits, select processors, and lower the priority.
//!
//! A rejected call fails with EPERM and is reported on standard error the first time. Without a
//! report: `clone` for a process, and the C library's search for name services, which it continues
//! without.

use std::collections::BTreeMap;
use std::io;

use rustix::process::getpid;
use seccompiler::{
    BpfProgram, SeccompAction, SeccompCmpArgLen, SeccompCmpOp, SeccompCondition, SeccompFilter,
    SeccompRule, TargetArch, apply_filter,
};

use Arguments::{All, Any, OneOf, PairOf};
use Is::{Null, OwnProcess, Value, Without};

/// The arguments with which a call is permitted. Positions count from 0.
#[derive(Debug, Clone, Copy)]
enum Arguments {
    Any,
    /// The argument at this position is one of these.
    OneOf(u8, &'static [u32]),
    /// The argument at this position and the next one are one of these pairs.
    PairOf(u8, &'static [(u32, u32)]),
    /// The arguments at these positions are so.
    All(&'static [(u8, Is)]),
}

/// What an argument is. The kernel reads 32 bits of all but addresses, so the filter compares 32
/// bits too.
#[derive(Debug, Clone, Copy)]
enum Is {
    Value(u32),
    Not(u32),
    /// A value without these bits.
    Without(u32),
    /// The address 0.
    Null,
    NotNull,
    /// The ID of this process.
    OwnProcess,
}

/// A call, its name, and its permitted arguments.
type Call = (i64, &'static str, Arguments);

macro_rules! calls {
    ($($name:ident)*) => { [$((libc::$name, stringify!($name), Any)),*] };
}

/// The calls for capturing, merging, compressing, writing, rotating and ending: memory and threads,
/// files of the directory, and descriptors that are open.
#[rustfmt::skip]
const ALLOWED: &[Call] = &calls! {
    // Memory, threads, time, signals. mmap(2) and mprotect(2) may make memory executable, as
    // filters are compiled.
    SYS_brk SYS_mmap SYS_munmap SYS_mprotect SYS_mremap SYS_madvise SYS_membarrier
    SYS_futex SYS_set_robust_list SYS_rseq SYS_exit SYS_exit_group SYS_gettid SYS_getpid SYS_getppid
    SYS_sched_yield SYS_sched_getaffinity SYS_sched_getparam SYS_sched_getscheduler SYS_getcpu
    SYS_capget SYS_getrandom SYS_clock_gettime SYS_clock_getres
    SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_getrusage SYS_uname SYS_sysinfo
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall SYS_wait4
    SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_eventfd2 SYS_pipe2
    SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait
    // Files.
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_lseek SYS_openat SYS_close
    SYS_close_range SYS_fstat SYS_newfstatat SYS_statx SYS_faccessat SYS_faccessat2 SYS_readlinkat SYS_getdents64 SYS_getcwd
    SYS_fsync SYS_fdatasync SYS_ftruncate SYS_flock SYS_dup SYS_dup3
    SYS_renameat SYS_renameat2 SYS_unlinkat SYS_fchmod SYS_statfs SYS_fstatfs SYS_fadvise64
    // Sockets that are open.
    SYS_accept4 SYS_getsockname SYS_getsockopt SYS_recvfrom SYS_recvmsg
};

/// Older calls, which only some architectures have.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_BY_OLD_NAMES: &[Call] = &calls! {
    SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_rename SYS_unlink SYS_poll SYS_epoll_wait SYS_getdents SYS_time
};
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_BY_OLD_NAMES: &[Call] = &[];

/// Calls that are permitted with some arguments.
#[rustfmt::skip]
const ALLOWED_WITH: &[Call] = &[
    (libc::SYS_ioctl, "SYS_ioctl", OneOf(1, IOCTLS)),
    (libc::SYS_fcntl, "SYS_fcntl", OneOf(1, FCNTLS)),
    // O_ASYNC lets a terminal send SIGIO to the processes in its foreground.
    (libc::SYS_fcntl, "SYS_fcntl", All(&[(1, Value(libc::F_SETFL as u32)), (2, Without(libc::O_ASYNC as u32))])),
    (libc::SYS_prctl, "SYS_prctl", OneOf(0, PRCTLS)),
    (libc::SYS_setsockopt, "SYS_setsockopt", PairOf(1, SOCKET_OPTIONS)),
    (libc::SYS_tgkill, "SYS_tgkill", All(&[(0, OwnProcess)])),
    // A thread's own limits, which are read; its own processors; and its own priority, which is
    // lowered (for indexes).
    (libc::SYS_prlimit64, "SYS_prlimit64", All(&[(0, Value(0)), (2, Null)])),
    (libc::SYS_sched_setaffinity, "SYS_sched_setaffinity", All(&[(0, Value(0))])),
    (libc::SYS_sched_setscheduler, "SYS_sched_setscheduler", All(&[(0, Value(0)), (1, Value(libc::SCHED_IDLE as u32))])),
    (libc::SYS_ioprio_set, "SYS_ioprio_set", All(&[(0, Value(IOPRIO_WHO_PROCESS)), (1, Value(0))])),
];

const IOPRIO_WHO_PROCESS: u32 = 1;

/// Nothing here writes to a terminal's input (TIOCSTI, TIOCLINUX) or sets its modes. The requests
/// for interfaces only read, because the kernel requires CAP_NET_ADMIN for the others that
/// SIOCETHTOOL has.
const IOCTLS: &[u32] = &[
    // Whether a descriptor is a terminal, which newer C libraries ask by the second one, and how
    // wide that is.
    libc::TCGETS as u32,
    TCGETS2,
    libc::TIOCGWINSZ as u32,
    // How many bytes a pipe holds; whether a call waits; whether a program that is executed has the
    // descriptor.
    libc::FIONREAD as u32,
    libc::FIONBIO as u32,
    libc::FIOCLEX as u32,
    SIOCGIFNAME,
    SIOCGIFINDEX,
    libc::SIOCETHTOOL as u32,
    SIOCGHWTSTAMP,
];
const TCGETS2: u32 = 0x802c_542a;
const SIOCGIFNAME: u32 = 0x8910;
const SIOCGIFINDEX: u32 = 0x8933;
const SIOCGHWTSTAMP: u32 = 0x89b1;

/// No signals: F_SETOWN and F_SETSIG send one to any process of the user.
const FCNTLS: &[u32] = &[
    libc::F_GETFD as u32,
    libc::F_SETFD as u32,
    libc::F_GETFL as u32,
    libc::F_DUPFD as u32,
    libc::F_DUPFD_CLOEXEC as u32,
    libc::F_GETPIPE_SZ as u32,
];

/// The name of a thread, and that of memory, which some versions of the C library set. Not
/// PR_SET_DUMPABLE and PR_SET_PTRACER, which let other processes of the user in.
const PRCTLS: &[u32] =
    &[libc::PR_SET_NAME as u32, libc::PR_GET_NAME as u32, libc::PR_GET_DUMPABLE as u32, PR_SET_VMA];
const PR_SET_VMA: u32 = 0x5356_4d41;

/// The options for rings, filters and fan-out groups. Not PACKET_ADD_MEMBERSHIP, which names
/// another interface in memory, SO_BINDTODEVICE, the rings for sending, and XDP_UMEM_REG.
const SOCKET_OPTIONS: &[(u32, u32)] = &[
    (libc::SOL_PACKET as u32, libc::PACKET_VERSION as u32),
    (libc::SOL_PACKET as u32, libc::PACKET_RESERVE as u32),
    (libc::SOL_PACKET as u32, libc::PACKET_RX_RING as u32),
    (libc::SOL_PACKET as u32, libc::PACKET_IGNORE_OUTGOING as u32),
    (libc::SOL_PACKET as u32, libc::PACKET_FANOUT as u32),
    (libc::SOL_PACKET as u32, libc::PACKET_FANOUT_DATA as u32),
    (libc::SOL_SOCKET as u32, libc::SO_ATTACH_FILTER as u32),
    (libc::SOL_SOCKET as u32, libc::SO_RCVBUF as u32),
    // Notifications of the kernel, which need no privilege.
    (libc::SOL_NETLINK as u32, libc::NETLINK_ADD_MEMBERSHIP as u32),
    (libc::SOL_XDP as u32, libc::XDP_RX_RING as u32),
    (libc::SOL_XDP as u32, libc::XDP_UMEM_FILL_RING as u32),
    (libc::SOL_XDP as u32, libc::XDP_UMEM_COMPLETION_RING as u32),
];

/// The flags with which C libraries start a thread: glibc's, and musl's, which also has
/// CLONE_DETACHED. No namespace, no process.
const THREAD: u32 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD
    | libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_CLEARTID) as u32;
const DETACHED_THREAD: u32 = THREAD | libc::CLONE_DETACHED as u32;

/// These fail with EPERM and without a report.
const QUIETLY_REFUSED: &[Call] = &[
    // The C library starts a process with all signals blocked, so SIGSYS would end this one.
    (libc::SYS_clone, "SYS_clone", All(&[(0, Is::Not(THREAD)), (0, Is::Not(DETACHED_THREAD))])),
    // To an address other than that to which the socket is connected or bound. The C library does
    // so when a filter has the name of a host or a port, and goes on without an answer.
    (libc::SYS_sendto, "SYS_sendto", All(&[(4, Is::NotNull)])),
    (libc::SYS_sendmmsg, "SYS_sendmmsg", Any),
    // For the same names it looks for a name service (nscd), and reads files if there is none.
    (libc::SYS_socket, "SYS_socket", Any),
];

/// The flags of clone3(2) are in memory. The C library calls clone(2) where the kernel lacks the
/// newer call.
const UNKNOWN: &[Call] = &calls! { SYS_clone3 };

/// Calls that are refused, and whose names are printed.
#[rustfmt::skip]
const OFTEN_REFUSED: &[Call] = &calls! {
    SYS_execve SYS_execveat SYS_ptrace SYS_mount SYS_umount2 SYS_setns SYS_unshare SYS_chroot SYS_pivot_root SYS_setuid SYS_setgid
    SYS_setresuid SYS_setresgid SYS_setgroups SYS_capset SYS_perf_event_open SYS_process_vm_readv SYS_process_vm_writev
    SYS_init_module SYS_finit_module SYS_kexec_load SYS_reboot SYS_keyctl SYS_add_key SYS_fchown SYS_fchownat SYS_symlinkat
    SYS_mknodat SYS_io_uring_setup SYS_userfaultfd SYS_pidfd_open SYS_pidfd_getfd SYS_pidfd_send_signal SYS_clock_settime
    SYS_adjtimex SYS_sethostname SYS_acct SYS_waitid SYS_vmsplice SYS_open_by_handle_at SYS_seccomp
    SYS_socketpair SYS_bind SYS_connect SYS_listen SYS_sendmsg SYS_shutdown SYS_getpeername SYS_bpf
    SYS_memfd_create SYS_mlock SYS_mincore SYS_kill SYS_tkill SYS_rt_sigqueueinfo SYS_rt_tgsigqueueinfo SYS_setpriority
    SYS_setsid SYS_timerfd_create SYS_mkdirat SYS_linkat SYS_fchmodat SYS_utimensat SYS_fallocate SYS_sync_file_range
    SYS_copy_file_range SYS_splice SYS_sendfile
};

/// The name of a call, such as `openat`, if it is in one of the lists above.
pub(crate) fn name(number: i64) -> Option<&'static str> {
    let lists = [OFTEN_REFUSED, ALLOWED, ALLOWED_BY_OLD_NAMES, ALLOWED_WITH];
    lists
        .into_iter()
        .flatten()
        .find(|(call, ..)| *call == number)
        .map(|(_, name, _)| &name["SYS_".len()..])
}

/// From now on this thread, and threads that it starts, can make only these calls. Others raise
/// SIGSYS, or fail.
pub(crate) fn refuse_others() -> io::Result<()> {
    let handled_below = [QUIETLY_REFUSED, UNKNOWN];
    let allowed = [ALLOWED, ALLOWED_BY_OLD_NAMES, ALLOWED_WITH].into_iter().flatten();
    let by_number = handled_below.into_iter().flatten().map(|(call, name, _)| (*call, *name, Any));

    let refuse = |calls: &[Call], error: i32| {
        apply(
            calls.iter().copied(),
            SeccompAction::Allow,
            SeccompAction::Errno(error.cast_unsigned()),
        )
    };
    refuse(UNKNOWN, libc::ENOSYS)?;

    #[cfg(sabotage)]
    let is_open = crate::sabotage::is("cage-starts-processes");
    #[cfg(not(sabotage))]
    let is_open = false;
    if !is_open {
        refuse(QUIETLY_REFUSED, libc::EPERM)?;
    }

    // Of several filters, the strictest answer counts. This one is the last, because it refuses to
    // add filters.
    apply(allowed.copied().chain(by_number), SeccompAction::Trap, SeccompAction::Allow)
}

/// From now on these calls are answered by `matching`, and others by `others`.
fn apply(
    calls: impl Iterator<Item = Call>,
    others: SeccompAction,
    matching: SeccompAction,
) -> io::Result<()> {
    let failed = |error: &dyn std::fmt::Display| {
        io::Error::other(format!("cannot apply the system-call filter: {error}"))
    };
    let mut rules: BTreeMap<i64, Vec<SeccompRule>> = BTreeMap::new();

    for (call, _, arguments) in calls {
        let alternatives = arguments.rules().map_err(|error| failed(&error))?;
        rules.entry(call).or_default().extend(alternatives);
    }

    #[cfg(sabotage)]
    if matches!(matching, SeccompAction::Allow) {
        permitted_by_a_saboteur().into_iter().for_each(|call| _ = rules.insert(call, Vec::new()));
    }

    let architecture =
        TargetArch::try_from(std::env::consts::ARCH).map_err(|error| failed(&error))?;
    let filter = SeccompFilter::new(rules, others, matching, architecture)
        .map_err(|error| failed(&error))?;
    let program: BpfProgram = filter.try_into().map_err(|error| failed(&error))?;

    apply_filter(&program).map_err(|error| failed(&error))
}

/// Calls that are permitted with any arguments.
#[cfg(sabotage)]
fn permitted_by_a_saboteur() -> Vec<i64> {
    use crate::sabotage::is;
    let calls = [
        (is("cage-signals-other-processes"), libc::SYS_kill),
        (is("cage-types-into-the-terminal"), libc::SYS_ioctl),
        (is("cage-binds-sockets-elsewhere"), libc::SYS_bind),
    ];
    calls.into_iter().filter(|(chosen, _)| *chosen).map(|(_, call)| call).collect()
}

impl Arguments {
    /// One of these rules must hold; without rules, any arguments will do.
    fn rules(self) -> Result<Vec<SeccompRule>, seccompiler::BackendError> {
        let rule = |conditions: &[(u8, Is)]| {
            let conditions = conditions.iter().map(|(position, is)| is.condition(*position));
            SeccompRule::new(conditions.collect::<Result<_, _>>()?)
        };
        match self {
            Any => Ok(Vec::new()),
            OneOf(position, values) => {
                values.iter().map(|value| rule(&[(position, Value(*value))])).collect()
            }
            PairOf(position, pairs) => pairs
                .iter()
                .map(|(first, second)| {
                    rule(&[(position, Value(*first)), (position + 1, Value(*second))])
                })
                .collect(),
            All(conditions) => Ok(vec![rule(conditions)?]),
        }
    }
}

impl Is {
    fn condition(self, position: u8) -> Result<SeccompCondition, seccompiler::BackendError> {
        let (bits, comparison, value) = match self {
            Value(value) => (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, value.into()),
            Self::Not(value) => (SeccompCmpArgLen::Dword, SeccompCmpOp::Ne, value.into()),
            Without(bits) => (SeccompCmpArgLen::Dword, SeccompCmpOp::MaskedEq(bits.into()), 0),
            Null => (SeccompCmpArgLen::Qword, SeccompCmpOp::Eq, 0),
            Self::NotNull => (SeccompCmpArgLen::Qword, SeccompCmpOp::Ne, 0),
            OwnProcess => {
                let own = getpid().as_raw_nonzero().get().cast_unsigned();
                (SeccompCmpArgLen::Dword, SeccompCmpOp::Eq, own.into())
            }
        };
        SeccompCondition::new(position, bits, comparison, value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_with_permitted_arguments_is_in_no_list_of_calls_with_any() {
        let any = |list: &[Call]| list.iter().map(|(call, ..)| *call).collect::<Vec<_>>();
        let any = [any(ALLOWED), any(ALLOWED_BY_OLD_NAMES)].concat();
        let restricted = [ALLOWED_WITH, QUIETLY_REFUSED, UNKNOWN].into_iter().flatten();
        for (call, name, _) in restricted {
            // Without rules, a call is permitted with any arguments, and with rules only with
            // those.
            assert!(!any.contains(call), "{name}");
        }
    }
}
