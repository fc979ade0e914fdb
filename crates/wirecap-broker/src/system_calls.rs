//! The system-call filter of a recording process.

use std::collections::BTreeMap;
use std::io;

use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch, apply_filter};

macro_rules! calls {
    ($($name:ident)*) => { [$((libc::$name, stringify!($name))),*] };
}

/// The calls for capturing, merging, compressing, writing, rotating and ending: memory and threads, files of the directory,
/// sockets that are open or carry no packets (rtnetlink, the broker's), and bpf(2) for open descriptors.
#[rustfmt::skip]
const ALLOWED: &[(i64, &str)] = &calls! {
    // Memory, threads, time, signals.
    SYS_brk SYS_mmap SYS_munmap SYS_mprotect SYS_mremap SYS_madvise SYS_memfd_create SYS_membarrier SYS_mincore
    SYS_mlock SYS_munlock SYS_futex SYS_clone SYS_clone3 SYS_set_robust_list SYS_rseq SYS_set_tid_address
    SYS_exit SYS_exit_group SYS_gettid SYS_getpid SYS_getppid SYS_tgkill SYS_sched_yield SYS_sched_getaffinity SYS_sched_setaffinity
    SYS_sched_getparam SYS_sched_getscheduler SYS_sched_setscheduler SYS_setpriority SYS_getpriority SYS_ioprio_set SYS_getcpu
    SYS_prctl SYS_capget SYS_getrandom SYS_clock_gettime SYS_clock_getres
    SYS_clock_nanosleep SYS_nanosleep SYS_gettimeofday SYS_getrusage SYS_prlimit64 SYS_uname SYS_sysinfo
    SYS_rt_sigaction SYS_rt_sigprocmask SYS_rt_sigreturn SYS_sigaltstack SYS_restart_syscall SYS_kill SYS_wait4
    SYS_getuid SYS_geteuid SYS_getgid SYS_getegid SYS_timerfd_create SYS_timerfd_settime SYS_eventfd2 SYS_pipe2
    SYS_ppoll SYS_pselect6 SYS_epoll_create1 SYS_epoll_ctl SYS_epoll_pwait
    // Files.
    SYS_read SYS_write SYS_readv SYS_writev SYS_pread64 SYS_pwrite64 SYS_preadv SYS_pwritev SYS_lseek SYS_openat SYS_close
    SYS_close_range SYS_fstat SYS_newfstatat SYS_statx SYS_faccessat SYS_faccessat2 SYS_readlinkat SYS_getdents64 SYS_getcwd
    SYS_fsync SYS_fdatasync SYS_sync_file_range SYS_fallocate SYS_ftruncate SYS_flock SYS_fcntl SYS_dup SYS_dup3
    SYS_renameat SYS_renameat2 SYS_unlinkat SYS_mkdirat SYS_linkat SYS_fchmod SYS_fchmodat SYS_utimensat SYS_statfs SYS_fstatfs
    SYS_fadvise64 SYS_copy_file_range SYS_splice SYS_ioctl
    // Sockets and eBPF.
    SYS_socket SYS_socketpair SYS_bind SYS_connect SYS_listen SYS_accept4 SYS_getsockname SYS_getpeername
    SYS_setsockopt SYS_getsockopt SYS_sendto SYS_recvfrom SYS_sendmsg SYS_recvmsg SYS_shutdown SYS_bpf
};

/// Older calls, which only some architectures have.
#[cfg(target_arch = "x86_64")]
#[rustfmt::skip]
const ALLOWED_BY_OLD_NAMES: &[(i64, &str)] = &calls! {
    SYS_open SYS_stat SYS_lstat SYS_access SYS_readlink SYS_rename SYS_unlink SYS_mkdir SYS_poll SYS_select SYS_epoll_wait
    SYS_epoll_create SYS_pipe SYS_dup2 SYS_chmod SYS_time SYS_arch_prctl SYS_eventfd SYS_link SYS_getdents
};
#[cfg(not(target_arch = "x86_64"))]
const ALLOWED_BY_OLD_NAMES: &[(i64, &str)] = &[];

/// Calls that are refused, and whose names are printed.
#[rustfmt::skip]
const OFTEN_REFUSED: &[(i64, &str)] = &calls! {
    SYS_execve SYS_execveat SYS_ptrace SYS_mount SYS_umount2 SYS_setns SYS_unshare SYS_chroot SYS_pivot_root SYS_setuid SYS_setgid
    SYS_setresuid SYS_setresgid SYS_setgroups SYS_capset SYS_perf_event_open SYS_process_vm_readv SYS_process_vm_writev
    SYS_init_module SYS_finit_module SYS_kexec_load SYS_reboot SYS_keyctl SYS_add_key SYS_fchown SYS_fchownat SYS_symlinkat
    SYS_mknodat SYS_io_uring_setup SYS_userfaultfd SYS_pidfd_open SYS_clock_settime SYS_adjtimex SYS_sethostname SYS_acct SYS_waitid
    SYS_vmsplice SYS_open_by_handle_at SYS_seccomp
};

/// The name of a call, such as `openat`, if it is in one of the lists above.
pub(crate) fn name(number: i64) -> Option<&'static str> {
    let known = [OFTEN_REFUSED, ALLOWED, ALLOWED_BY_OLD_NAMES].into_iter().flatten();
    known.clone().find(|(call, _)| *call == number).map(|(_, name)| &name["SYS_".len()..])
}

/// From now on this thread, and threads that it starts, can make only these calls. Others raise SIGSYS.
pub(crate) fn refuse_others() -> io::Result<()> {
    let rules: BTreeMap<i64, Vec<_>> =
        [ALLOWED, ALLOWED_BY_OLD_NAMES].into_iter().flatten().map(|(call, _)| (*call, Vec::new())).collect();
    let failed = |error: &dyn std::fmt::Display| {
        io::Error::other(format!("cannot apply the system-call filter: {error}"))
    };
    let architecture = TargetArch::try_from(std::env::consts::ARCH).map_err(|error| failed(&error))?;
    let filter = SeccompFilter::new(rules, SeccompAction::Trap, SeccompAction::Allow, architecture)
        .map_err(|error| failed(&error))?;
    let program: BpfProgram = filter.try_into().map_err(|error| failed(&error))?;
    apply_filter(&program).map_err(|error| failed(&error))
}
