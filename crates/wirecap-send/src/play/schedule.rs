//! When frames are due.

const NANOS_PER_SECOND: u128 = 1_000_000_000;

/// The pace of frames.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Pace {
    /// As recorded, multiplied by this factor.
    Recorded(f64),
    /// This many frames per second at equal intervals.
    FramesPerSecond(u64),
    /// This many bits per second, of frames without Ethernet preamble, gap and checksum.
    BitsPerSecond(u64),
    /// One behind the other.
    Top,
}

/// Converts the recorded times of frames to the times at which they are due.
#[derive(Clone, Debug)]
pub struct Schedule {
    pace: Pace,
    /// The longest pause that is kept between two frames as recorded.
    pause_max_ns: u64,
    /// The latest recorded time in this round.
    latest_ns: Option<u64>,
    /// The position in the recording's time, over all rounds.
    position_ns: u64,
    /// The start of this round, and the number of frames since then.
    round: (u64, u64),
    frames: u64,
    bits: u64,
}

impl Schedule {
    /// A schedule at this pace, without pauses longer than `pause_max_ns` in the recording's time.
    pub fn new(pace: Pace, pause_max_ns: u64) -> Self {
        let latest_ns = None;
        let round = (0, 0);
        Self { pace, pause_max_ns, latest_ns, position_ns: 0, round, frames: 0, bits: 0 }
    }

    /// The time of the next frame, in nanoseconds from the start. A frame that was recorded before
    /// its predecessor, or has no time, is due together with it.
    pub fn due_ns(&mut self, recorded_ns: Option<u64>, frame_bytes: usize) -> u64 {
        let recorded_ns = recorded_ns.or(self.latest_ns).unwrap_or(0);
        let latest_ns = self.latest_ns.unwrap_or(recorded_ns);
        let pause_ns = recorded_ns.saturating_sub(latest_ns).min(self.pause_max_ns);

        // The times in a damaged file may span centuries, and some rounds of it may overflow.
        self.position_ns = self.position_ns.saturating_add(pause_ns);
        self.latest_ns = Some(latest_ns.max(recorded_ns));

        let frames = self.frames;
        let bits = self.bits;
        self.frames += 1;
        self.round.1 += 1;
        self.bits += frame_bytes as u64 * 8;

        match self.pace {
            Pace::Recorded(speed) => (self.position_ns as f64 / speed) as u64,
            Pace::FramesPerSecond(rate) => nanos_at(frames, rate),
            Pace::BitsPerSecond(rate) => nanos_at(bits, rate),
            Pace::Top => 0,
        }
    }

    /// The recording restarts, at the mean interval of frames after its last frame.
    pub fn next_round(&mut self) {
        let (start_ns, frames) = self.round;
        if frames > 1 {
            let mean_ns = (self.position_ns - start_ns) / (frames - 1);
            self.position_ns = self.position_ns.saturating_add(mean_ns);
        }
        self.latest_ns = None;
        self.round = (self.position_ns, 0);
    }
}

fn nanos_at(units: u64, per_second: u64) -> u64 {
    let nanos = u128::from(units) * NANOS_PER_SECOND / u128::from(per_second);
    nanos.try_into().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(pace: Pace, pause_max_ns: u64, recorded: &[u64]) -> Vec<u64> {
        let mut schedule = Schedule::new(pace, pause_max_ns);
        recorded.iter().map(|time| schedule.due_ns(Some(*time), 125)).collect()
    }

    #[test]
    fn a_recording_is_played_as_it_was_recorded_or_faster() {
        let recorded = [5_000, 6_000, 9_000];
        assert_eq!(due(Pace::Recorded(1.0), u64::MAX, &recorded), [0, 1_000, 4_000]);
        assert_eq!(due(Pace::Recorded(2.0), u64::MAX, &recorded), [0, 500, 2_000]);
        assert_eq!(due(Pace::Recorded(1.0), 2_000, &recorded), [0, 1_000, 3_000]);
    }

    #[test]
    fn a_time_that_goes_back_is_taken_as_that_of_the_frame_before() {
        assert_eq!(due(Pace::Recorded(1.0), u64::MAX, &[10, 30, 20, 40]), [0, 20, 20, 30]);
    }

    #[test]
    fn rates_count_frames_or_bits() {
        let seconds = |second: u64| second * 1_000_000_000;
        assert_eq!(due(Pace::FramesPerSecond(2), 0, &[7, 7, 7]), [0, seconds(1) / 2, seconds(1)]);
        assert_eq!(due(Pace::BitsPerSecond(1000), 0, &[7, 7, 7]), [0, seconds(1), seconds(2)]);
        assert_eq!(due(Pace::Top, 0, &[7, 8]), [0, 0]);
    }

    #[test]
    fn a_frame_due_after_centuries_is_not_due_now() {
        let centuries = [0, u64::MAX, u64::MAX];
        assert_eq!(due(Pace::Recorded(1e-6), u64::MAX, &centuries), centuries);
        let mut schedule = Schedule::new(Pace::Recorded(1.0), u64::MAX);
        let round =
            |schedule: &mut Schedule| [0, u64::MAX].map(|time| schedule.due_ns(Some(time), 60));
        assert_eq!(round(&mut schedule), [0, u64::MAX]);
        schedule.next_round();
        assert_eq!(round(&mut schedule), [u64::MAX; 2]);
    }

    #[test]
    fn rounds_follow_each_other_at_the_mean_distance() {
        let mut schedule = Schedule::new(Pace::Recorded(1.0), u64::MAX);
        let mut round = || {
            let due = [100, 200, 400].map(|time| schedule.due_ns(Some(time), 60));
            schedule.next_round();
            due
        };
        assert_eq!([round(), round()], [[0, 100, 300], [450, 550, 750]]);
    }
}
