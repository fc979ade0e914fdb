//! Work that uses the processor and the disk only when they are otherwise idle.
#![allow(unsafe_code)]

use libc::{SCHED_IDLE, SYS_ioprio_set, sched_param, sched_setscheduler, syscall};

const IOPRIO_WHO_PROCESS: i32 = 1;
const IOPRIO_CLASS_IDLE: i32 = 3;
const IOPRIO_CLASS_SHIFT: i32 = 13;

/// Gives this thread, and threads that it starts later, idle CPU and I/O priority. If the system
/// refuses, the thread is unchanged.
pub fn be_idle() {
    let priority = sched_param { sched_priority: 0 };
    // SAFETY: the kernel reads the parameter, which lives; 0 is this thread.
    unsafe { sched_setscheduler(0, SCHED_IDLE, &raw const priority) };
    // SAFETY: the call takes three integers; 0 is this thread.
    unsafe {
        syscall(SYS_ioprio_set, IOPRIO_WHO_PROCESS, 0, IOPRIO_CLASS_IDLE << IOPRIO_CLASS_SHIFT)
    };
}
