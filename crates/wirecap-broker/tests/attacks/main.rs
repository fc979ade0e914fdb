//! A client of the broker that an attacker controls completely: it sends any messages, and no check
//! of the client's library stands between. Each test is an attack, and looks in the kernel whether
//! it has gained anything, not only at the answers.
//!
//! The broker is this program, run a second time. Here the client is root and in no cage: only what
//! the broker does for it counts. What a client in the cage can do without the broker is in
//! `confined.rs`.

mod bed;
mod files;
mod filters;
mod grammar;
mod messages;
mod neighbours;
mod programs;
mod sockets;

use std::env;
use std::io::stdin;
use std::os::fd::AsFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::ExitCode;

use wirecap_testbed::privileged;

/// What this program is if it is not the tests.
pub(crate) const ROLE: &str = "WIRECAP_TEST_ROLE";

macro_rules! tests {
    ($($module:ident { $($name:ident)* })*) => { [$($((stringify!($name), $module::$name)),*),*] };
}

const TESTS: &[(&str, fn())] = &tests! {
    sockets {
        a_packet_socket_is_bound_to_no_other_interface
        no_other_interface_becomes_promiscuous
        all_interfaces_are_for_packet_sockets_only
        an_af_xdp_socket_is_bound_to_no_other_interface_or_queue
        no_netlink_socket_hears_of_other_groups
    }
    programs {
        no_program_is_attached_to_another_interface_or_queue
        the_right_to_change_a_program_is_that_of_its_interface
        a_socket_with_another_key_or_of_another_interface_receives_nothing
        no_packet_of_another_queue_is_dropped
        numbers_are_those_of_objects_of_the_right_kind
        released_numbers_are_gone_and_new_objects_have_other_ones
        impossible_steering_is_refused
    }
    neighbours {
        the_queue_of_another_capture_is_not_taken
        a_queue_that_was_given_up_is_not_taken_back
        no_program_replaces_that_of_a_capture_that_came_later
        a_move_does_not_take_the_queues_of_another_capture
        the_link_of_another_namespace_is_left_alone
        a_program_of_the_same_name_is_not_joined
        a_program_of_another_user_is_not_joined
        a_false_dispatcher_is_not_joined
    }
    filters {
        an_invalid_filter_never_becomes_a_program
        a_filter_reads_nothing_beyond_the_packet
        a_filter_that_the_kernel_does_not_run_runs_in_user_space
    }
    files {
        memory_is_bounded
        the_memory_of_a_socket_is_that_of_its_file
        the_number_of_objects_is_bounded
        the_command_runs_only_for_paths_in_the_directory
        a_link_in_the_directory_is_only_a_name
        without_a_command_nothing_runs
    }
    messages {
        a_message_of_another_process_ends_the_service
        descriptors_that_are_sent_along_are_discarded
        a_message_that_breaks_off_or_is_too_long_ends_the_service
        names_and_paths_of_a_mebibyte_are_refused
        bytes_that_are_no_request_are_refused
        the_broker_ends_with_its_client_and_not_with_its_socket
        the_previous_requests_no_longer_exist
    }
    grammar {
        sequences_of_requests_gain_nothing
    }
};

/// No test harness: the broker gives up capabilities of its thread.
fn main() -> ExitCode {
    match env::var(ROLE).as_deref() {
        Ok("broker") => {
            let served = wirecap_broker::serve(stdin().as_fd().try_clone_to_owned().unwrap());
            return ExitCode::from(u8::from(served.is_err()));
        }
        Ok(client) => {
            messages::be_killed(client);
            return ExitCode::SUCCESS;
        }
        Err(_) => {}
    }
    if !privileged() {
        return ExitCode::SUCCESS;
    }
    let only: Vec<String> =
        env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let mut has_failed = false;
    for (name, test) in TESTS {
        if !only.is_empty() && !only.iter().any(|part| name.contains(part)) {
            continue;
        }
        let outcome = catch_unwind(AssertUnwindSafe(test));
        println!("test {name} ... {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        has_failed |= outcome.is_err();
    }
    ExitCode::from(u8::from(has_failed))
}
