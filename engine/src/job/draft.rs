//! A job while it is put together: stages in the order in which they were written down.

use super::plan::StagePlan;

/// See the module.
#[derive(Default)]
pub(super) struct Draft {
    pub name: String,
    pub stages: Vec<StageDraft>,
}

/// A stage and the name it was given, if it was.
pub(super) struct StageDraft {
    pub name: Option<String>,
    pub plan: Box<dyn StagePlan>,
}

impl Draft {
    /// Adds the stages of another draft behind these.
    pub(super) fn join(&mut self, other: Draft) {
        self.stages.extend(other.stages);
    }
}
