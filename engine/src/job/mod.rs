//! Jobs: what is to be computed, as a value. It can be explained, and checked against a snapshot, before anything starts.

mod draft;
mod explain;
mod misuse;
mod plan;
mod stream;

pub use explain::{JobPlan, PlannedStage, PlannedState};
pub use stream::{KeyedStream, Stream};

pub(crate) use plan::{BuildContext, EdgeKey, RestoredStage, StagePlan};

use crate::chain::Identity;
use crate::operator::StateSchema;
use crate::sink::{Committer, Owner};
use crate::source::Source;
use crate::{Error, Result};
use draft::Draft;
use millstream_state::StateId;
use millstream_state::format::check_name;
use plan::SourcePlan;

/// A job: sources, operators and sinks, each stream ended in a sink.
///
/// ```no_run
/// use millstream::prelude::*;
///
/// let job = Job::named("word-count")
///     .source(FileSource::lines("input/*.txt"))
///     .flat_map(|line, out| line.split_whitespace().for_each(|word| out.push(Text::from(word))))
///     .key_by_ref(|word| word.as_str())
///     .count("counts")
///     .sink(FileSink::lines("out/", |(word, n), line| write!(line, "{word}\t{n}")));
/// println!("{}", job.explain());
/// ```
pub struct Job(Draft);

impl Job {
    /// An empty job with this name, its identity in state directories and messages: `[A-Za-z0-9._-]{1,128}`, no leading dot.
    pub fn named(name: impl Into<String>) -> Self {
        Self(Draft { name: name.into(), stages: Vec::new() })
    }

    pub(crate) fn from_draft(draft: Draft) -> Self {
        Self(draft)
    }

    /// Begins a stream. Sources are told apart in snapshots by their order; see [`source_named`](Self::source_named).
    pub fn source<S: Source>(self, source: S) -> Stream<SourcePlan<S>, Identity<S::Items>> {
        Stream::start(self.0, None, source)
    }

    /// Begins a stream whose source has a name of its own in snapshots, so that sources may be reordered.
    pub fn source_named<S: Source>(self, name: &str, source: S) -> Stream<SourcePlan<S>, Identity<S::Items>> {
        Stream::start(self.0, Some(name.to_owned()), source)
    }

    /// Checks the job and fixes the names of its stages.
    ///
    /// # Errors
    /// [`Invalid`](crate::ErrorKind::Invalid) when there is no stage, a name is not allowed, or two stages have one name.
    pub(crate) fn finish(self) -> Result<FinishedJob> {
        let Draft { name: job, stages: drafts } = self.0;
        check_name(&job).map_err(|error| error.within("job"))?;
        if drafts.is_empty() {
            return Err(Error::invalid(format_args!("job {job} has no source: begin with Job::source")));
        }
        let (mut sources, mut unions) = (0, 0);
        let mut stages: Vec<FinishedStage> = Vec::with_capacity(drafts.len());
        for draft in drafts {
            let name = draft.name.unwrap_or_else(|| {
                let is_source = draft.plan.inputs().is_empty();
                let (count, what) = if is_source { (&mut sources, "source") } else { (&mut unions, "union") };
                *count += 1;
                format!("{what}-{count}")
            });
            check_name(&name).map_err(|error| error.within("operator"))?;
            if stages.iter().any(|stage| stage.name == name) {
                return Err(Error::invalid(format_args!(
                    "job {job}: two operators are named {name}; the name is the identity of their state, so each needs its own"
                )));
            }
            stages.push(FinishedStage { name, plan: draft.plan });
        }
        let edges = stages.iter().filter_map(|stage| stage.plan.output_edge()).collect();
        Ok(FinishedJob { name: job, stages, edges })
    }
}

impl std::fmt::Debug for Job {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.explain())
    }
}

/// A checked job.
pub(crate) struct FinishedJob {
    pub name: String,
    pub stages: Vec<FinishedStage>,
    /// Every edge in order, and whether it re-partitions.
    pub edges: Vec<(EdgeKey, bool)>,
}

/// A stage of a checked job.
pub(crate) struct FinishedStage {
    pub name: String,
    pub plan: Box<dyn StagePlan>,
}

impl FinishedJob {
    /// A copy for one more shard.
    pub(crate) fn clone_for_shard(&self) -> Self {
        let stages = self.stages.iter();
        let stages = stages.map(|stage| FinishedStage { name: stage.name.clone(), plan: stage.plan.clone_for_shard() });
        Self { name: self.name.clone(), stages: stages.collect(), edges: self.edges.clone() }
    }

    /// The stage that an edge, by number, leads to.
    pub(crate) fn receiver(&self, edge: usize) -> Option<&FinishedStage> {
        let (key, _) = self.edges.get(edge)?;
        self.stages.iter().find(|stage| stage.plan.inputs().contains(key))
    }

    /// Every state that the job keeps.
    pub(crate) fn states(&self) -> Vec<StateSchema> {
        self.stages.iter().flat_map(|stage| stage.plan.states()).collect()
    }

    /// Every stage whose head is a source.
    pub(crate) fn sources(&self) -> impl Iterator<Item = &FinishedStage> {
        self.stages.iter().filter(|stage| stage.plan.inputs().is_empty())
    }

    /// What commits the output of each sink, by the name of the stage that it ends.
    ///
    /// # Errors
    /// What the first sink that cannot be written says.
    pub(crate) fn committers(&self, state: StateId) -> Result<Vec<(String, Box<dyn Committer>)>> {
        let owner = Owner { job: &self.name, state };
        let mut committers = Vec::new();
        for stage in &self.stages {
            if let Some(committer) = stage.plan.committer(owner)? {
                committers.push((stage.name.clone(), committer));
            }
        }
        Ok(committers)
    }
}
