//! Settings of an engine: plain data, checked before anything starts.

use crate::topology::Cores;
use crate::{Error, Result};
use millstream_state::{Epoch, KeyGroupCount};
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// What the environment variables begin with that override settings.
const PREFIX: &str = "MILLSTREAM_";
/// How alike (0 to 1) two names are when one may be a slip for the other.
const NEAR: f64 = 0.85;

/// What a job continues from.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Restore {
    /// The newest complete epoch of the state directory; a new directory begins empty.
    #[default]
    Latest,
    /// This complete epoch of the state directory. Output committed after it appears again, so it has to be asked for
    /// with [`EngineConfig::allow_going_back`].
    Epoch(Epoch),
    /// Nothing: the state directory must be new.
    Nothing,
}

/// Settings of an engine. Every field has a default that fits a first run; see each for its meaning.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineConfig {
    /// The cores to run on, one shard each.
    pub cores: Cores,
    /// Key groups of a new job; a restored one keeps the count it began with.
    pub key_groups: KeyGroupCount,
    /// Milliseconds from one epoch to the next.
    pub epoch_interval_ms: u64,
    /// Milliseconds after which an epoch that is not complete is given up. The job goes on.
    pub epoch_timeout_ms: u64,
    /// Milliseconds that the last epoch of a job has to become complete and its output committed, from the end of the input
    /// on and with all attempts; then the job ends as [`Uncommitted`](crate::ErrorKind::Uncommitted).
    pub final_epoch_patience_ms: u64,
    /// Complete epochs to keep.
    pub retained_epochs: usize,
    /// Where state and snapshots live. Without one nothing survives a crash, and output is committed only at the end.
    pub state_dir: Option<PathBuf>,
    /// Most bytes of memory for the state of one shard.
    pub state_memory_bytes_per_core: usize,
    /// Bytes of exchange buffers per shard and edge, divided by the number of shards.
    pub exchange_bytes_per_shard: usize,
    /// Most megabytes per second that one shard writes for snapshots; zero for no limit.
    pub flush_mbps: u32,
    /// What to continue from.
    pub restore: Restore,
    /// Allow a restore below the last committed epoch.
    pub allow_going_back: bool,
    /// Allow a restore that leaves state behind which the job no longer has.
    pub allow_dropped_state: bool,
    /// Go on with more input from a snapshot whose input had ended; where there is none, nothing is done. What emits [at the end](crate::operator::Emit::AtEnd) then
    /// emits every key again, in a newer epoch.
    pub resume_ended: bool,
    /// Never park an idle shard: the lowest latency, at the price of a busy core.
    pub busy_poll: bool,
    /// Fault the whole memory for state in before the first record.
    pub prefault_all: bool,
}

impl Default for EngineConfig {
    fn default() -> Self {
        Self {
            cores: Cores::auto(),
            key_groups: KeyGroupCount::DEFAULT,
            epoch_interval_ms: 1000,
            epoch_timeout_ms: 60_000,
            final_epoch_patience_ms: 60_000,
            retained_epochs: 2,
            state_dir: None,
            state_memory_bytes_per_core: 2 << 30,
            exchange_bytes_per_shard: 512 << 10,
            flush_mbps: 400,
            restore: Restore::Latest,
            allow_going_back: false,
            allow_dropped_state: false,
            resume_ended: false,
            busy_poll: false,
            prefault_all: false,
        }
    }
}

impl EngineConfig {
    /// The defaults.
    pub fn new() -> Self {
        Self::default()
    }

    /// The defaults, overridden by environment variables: `MILLSTREAM_` and the name of a field in capitals, for example
    /// `MILLSTREAM_CORES=2` or `MILLSTREAM_STATE_DIR=/data/job-a`. Values are as in JSON; text needs no quotes. A variable
    /// with that prefix that names no field has no effect, and a warning (of `tracing`) says so.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) names the variable, its value and what was expected.
    pub fn from_env() -> Result<Self> {
        let ours = std::env::vars_os().filter_map(|(name, value)| {
            let name = name.into_string().ok().filter(|name| name.starts_with(PREFIX))?;
            let not_text = |value| Error::invalid(format_args!("environment variable {name}={value:?} is not UTF-8"));
            Some(value.into_string().map_err(not_text).map(|value| (name, value)))
        });
        Self::from_variables(ours.collect::<Result<Vec<_>>>()?, |warning| tracing::warn!("{warning}"))
    }

    fn from_variables(
        variables: impl IntoIterator<Item = (String, String)>,
        mut warn: impl FnMut(String),
    ) -> Result<Self> {
        let mut config = serde_json::to_value(Self::default()).expect("settings are plain data");
        let fields = config.as_object_mut().expect("settings are a struct");
        for (name, value) in variables {
            let Some(field) = name.strip_prefix(PREFIX).map(str::to_ascii_lowercase) else { continue };
            if !fields.contains_key(&field) {
                warn(unknown(&name, fields));
                continue;
            }
            let text = || serde_json::Value::String(value.clone());
            // A number stays text where the field is text, such as a list of cores.
            let parsed = match &fields[&field] {
                serde_json::Value::String(_) => text(),
                _ => serde_json::from_str(&value).unwrap_or_else(|_| text()),
            };
            let before = fields.insert(field.clone(), parsed).expect("present");
            if let Err(error) = serde_json::from_value::<Self>(serde_json::Value::Object(fields.clone())) {
                return Err(Error::invalid(format_args!(
                    "environment variable {name}={value}: {error} (default: {before})"
                )));
            }
        }
        serde_json::from_value(config).map_err(|error| Error::invalid(format_args!("settings: {error}")))
    }

    /// Sets the cores to run on.
    #[must_use]
    pub fn cores(mut self, cores: Cores) -> Self {
        self.cores = cores;
        self
    }

    /// Sets the number of key groups of a new job.
    #[must_use]
    pub fn key_groups(mut self, count: KeyGroupCount) -> Self {
        self.key_groups = count;
        self
    }

    /// Sets the time from one epoch to the next.
    #[must_use]
    pub fn epoch_interval(mut self, interval: Duration) -> Self {
        self.epoch_interval_ms = u64::try_from(interval.as_millis()).unwrap_or(u64::MAX);
        self
    }

    /// Sets how many complete epochs to keep.
    #[must_use]
    pub fn retained_epochs(mut self, count: usize) -> Self {
        self.retained_epochs = count;
        self
    }

    /// Sets where state and snapshots live.
    #[must_use]
    pub fn state_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.state_dir = Some(path.as_ref().to_owned());
        self
    }

    /// Sets the most bytes of memory for the state of one shard.
    #[must_use]
    pub fn state_memory_bytes_per_core(mut self, bytes: usize) -> Self {
        self.state_memory_bytes_per_core = bytes;
        self
    }

    /// Sets the most megabytes per second that one shard writes for snapshots; zero for no limit.
    #[must_use]
    pub fn flush_mbps(mut self, mbps: u32) -> Self {
        self.flush_mbps = mbps;
        self
    }

    /// Sets what the job continues from.
    #[must_use]
    pub fn restore_from(mut self, restore: Restore) -> Self {
        self.restore = restore;
        self
    }

    /// Checks the settings against each other.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) names the setting, its value and the allowed range.
    pub fn validate(&self) -> Result<()> {
        let Self { epoch_interval_ms, epoch_timeout_ms, final_epoch_patience_ms, .. } = *self;
        check("--epoch-interval (epoch_interval_ms)", epoch_interval_ms, 1, DAY_MS, " milliseconds")?;
        check("--epoch-timeout (epoch_timeout_ms)", epoch_timeout_ms, 1, DAY_MS, " milliseconds")?;
        let patience = "--final-epoch-patience (final_epoch_patience_ms)";
        check(patience, final_epoch_patience_ms, 1, 30 * DAY_MS, " milliseconds")?;
        check("--retain (retained_epochs)", self.retained_epochs as u64, 1, 10_000, "")?;
        let memory = "--state-memory (state_memory_bytes_per_core)";
        check(memory, self.state_memory_bytes_per_core as u64, 4 << 20, 1 << 42, " bytes")?;
        let exchange = "--exchange-size (exchange_bytes_per_shard)";
        check(exchange, self.exchange_bytes_per_shard as u64, 4 << 10, 1 << 32, " bytes")
    }
}

const DAY_MS: u64 = 86_400_000;

fn check(setting: &str, value: u64, least: u64, most: u64, unit: &str) -> Result<()> {
    if (least..=most).contains(&value) {
        return Ok(());
    }
    Err(Error::invalid(format_args!("{setting} is {value}: must lie between {least} and {most}{unit}")))
}

/// What to say of a variable that looks like a setting and is none.
fn unknown(name: &str, fields: &serde_json::Map<String, serde_json::Value>) -> String {
    let field = name.trim_start_matches(PREFIX).to_ascii_lowercase();
    let near = fields.keys().map(|known| (strsim::jaro_winkler(&field, known), known));
    let near = near.filter(|(nearness, _)| *nearness > NEAR).max_by(|a, b| a.0.total_cmp(&b.0));
    let hint = near.map(|(_, known)| format!(": did you mean {PREFIX}{}?", known.to_ascii_uppercase()));
    format!("the environment variable {name} names no setting and has no effect{}", hint.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn from(variables: &[(&str, &str)]) -> Result<EngineConfig> {
        let variables = variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        EngineConfig::from_variables(variables, |warning| panic!("{warning}"))
    }

    #[test]
    fn the_environment_overrides_fields_by_name() {
        let config = from(&[
            ("MILLSTREAM_EPOCH_INTERVAL_MS", "250"),
            ("MILLSTREAM_STATE_DIR", "/data/a"),
            ("MILLSTREAM_RESTORE", "nothing"),
            ("MILLSTREAM_CORES", "2"),
            ("PATH", "/bin"),
        ]);
        let config = config.unwrap();
        assert_eq!(config.epoch_interval_ms, 250);
        assert_eq!(config.state_dir.as_deref(), Some(Path::new("/data/a")));
        assert_eq!(config.restore, Restore::Nothing);
        assert_eq!(config.cores, Cores::count(2));
    }

    #[test]
    fn a_bad_value_names_its_variable() {
        let error = from(&[("MILLSTREAM_EPOCH_INTERVAL_MS", "soon")]).unwrap_err();
        assert!(error.message().contains("MILLSTREAM_EPOCH_INTERVAL_MS=soon"), "{error}");
    }

    #[test]
    fn a_setting_out_of_range_is_refused_with_its_range() {
        let error = EngineConfig::new().retained_epochs(0).validate().unwrap_err();
        assert!(error.message().contains("--retain (retained_epochs) is 0: must lie between 1 and"), "{error}");
    }

    #[test]
    fn a_variable_that_names_no_setting_is_warned_of_with_the_nearest_that_does() {
        let warnings = |name: &str| {
            let mut warnings = Vec::new();
            let variables = [(name.to_owned(), "1".to_owned())];
            let config = EngineConfig::from_variables(variables, |warning| warnings.push(warning)).unwrap();
            assert_eq!(config, EngineConfig::default());
            warnings
        };
        let [slip] = &warnings("MILLSTREAM_EPOCH_INTERVAL")[..] else { panic!("one warning") };
        assert!(slip.contains("MILLSTREAM_EPOCH_INTERVAL names no setting"), "{slip}");
        assert!(slip.ends_with("did you mean MILLSTREAM_EPOCH_INTERVAL_MS?"), "{slip}");
        let [other] = &warnings("MILLSTREAM_ZZZ")[..] else { panic!("one warning") };
        assert!(!other.contains("did you mean"), "{other}");
        assert!(warnings("HOME").is_empty());
    }
}
