//! `wirecap top`: shows running captures live on a terminal, from their control sockets.

mod look;
mod poll;
mod view;

use std::io::{self, IsTerminal};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::{Signal, getpid, kill_process};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

use crate::shared::control::client::parse_name;
use crate::shared::failure::Failure;
use crate::size;
use look::Look;
use poll::Poller;
use view::View;

/// Watch running captures live: rates, pools, helpers, loss, writer, CPU time
///
/// A bar shows a ring's pool: packets waiting in the ring, then packets held in chunks; a line
/// marks T. Above T, buddies help.
#[derive(Debug, Args)]
#[command(
    after_help = "Keys: q quit, Tab next capture or all, up and down scroll, p pause, + and - change the interval.\n\
    NO_COLOR in the environment turns colours off."
)]
pub(crate) struct Arguments {
    /// Names of captures [default: all, including later ones]
    #[arg(value_name = "NAME", value_parser = parse_name)]
    names: Vec<String>,

    /// Time between updates
    #[arg(long, value_name = "TIME", value_parser = size::duration, default_value = "1s")]
    interval: Duration,
}

/// The shortest and the longest interval.
const INTERVALS: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(60)];
/// How long to wait for a key.
const KEY_WAIT: Duration = Duration::from_millis(50);

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        let message = "top needs a terminal; use wirecap status to print the same once";
        return Err(Failure::Usage(message.to_owned()));
    }

    let ends = Arc::new(AtomicBool::new(false));
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        flag::register(signal, Arc::clone(&ends))?;
    }

    let [shortest, longest] = INTERVALS;
    let poller = Poller::start(&arguments.names, arguments.interval.clamp(shortest, longest))?;
    let mut view = View::new(Look::of_environment(), poller.interval());

    end_with_the_terminal()?;
    let mut terminal = ratatui::try_init()?;
    let outcome = show(&mut terminal, &mut view, &poller, &ends);

    ratatui::restore();
    Ok(outcome?)
}

/// Ends the process when its terminal is closed. crossterm reads the end of a closed terminal again
/// and again, without returning: the program would take a CPU from the captures, and no signal
/// could end it.
fn end_with_the_terminal() -> io::Result<()> {
    thread::Builder::new().name("hang-up".to_owned()).spawn(|| {
        let stdin = io::stdin();
        // A hang-up is reported without being asked for.
        while !matches!(poll(&mut [PollFd::new(&stdin, PollFlags::empty())], None), Ok(1..)) {}
        process::exit(1);
    })?;
    Ok(())
}

fn show(
    terminal: &mut DefaultTerminal,
    view: &mut View,
    poller: &Poller,
    ends: &AtomicBool,
) -> io::Result<()> {
    let mut is_stale = true;

    while !ends.load(Ordering::Relaxed) {
        if let Some(statuses) = poller.latest() {
            is_stale |= view.take(statuses);
        }

        if is_stale {
            terminal.draw(|frame| view.draw(frame))?;
            is_stale = false;
        }

        if !event::poll(KEY_WAIT)? {
            continue;
        }

        match event::read()? {
            Event::Key(key) if key.kind != KeyEventKind::Release => match act(key, view, poller) {
                Wish::Look => {}
                Wish::Quit => return Ok(()),
                Wish::Suspend => {
                    ratatui::restore();
                    kill_process(getpid(), Signal::TSTP)?;
                    *terminal = ratatui::try_init()?;
                }
            },
            Event::Resize(..) => terminal.clear()?,
            _ => {}
        }

        is_stale = true;
    }
    Ok(())
}

/// The action of a key.
enum Wish {
    Look,
    Quit,
    Suspend,
}

fn act(key: KeyEvent, view: &mut View, poller: &Poller) -> Wish {
    let has_control = key.modifiers.contains(KeyModifiers::CONTROL);

    match key.code {
        KeyCode::Char('c') if has_control => return Wish::Quit,
        KeyCode::Char('z') if has_control => return Wish::Suspend,
        KeyCode::Char('q') | KeyCode::Esc => return Wish::Quit,
        KeyCode::Tab | KeyCode::Right => view.next(1),
        KeyCode::BackTab | KeyCode::Left => view.next(-1),
        KeyCode::Up => view.scroll(-1),
        KeyCode::Down => view.scroll(1),
        KeyCode::PageUp => view.scroll(-10),
        KeyCode::PageDown => view.scroll(10),
        KeyCode::Home => view.scroll(isize::MIN),
        KeyCode::Char('p' | ' ') => view.pause(),
        KeyCode::Char('+' | '=') => poller.set_interval((poller.interval() * 2).min(INTERVALS[1])),
        KeyCode::Char('-') => poller.set_interval((poller.interval() / 2).max(INTERVALS[0])),
        _ => {}
    }

    view.interval = poller.interval();
    Wish::Look
}
