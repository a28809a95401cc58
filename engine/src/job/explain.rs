//! What a job will do, told before it runs: for people as text, for programs as plain data with the same facts.

use super::Job;
use crate::operator::StateSchema;
use crate::sink::Guarantee;
use millstream_state::Schema;
use serde::Serialize;
use std::fmt;

/// The plan of a job: its stages in the order in which they were added. Its text is what [`Job::explain`] returns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct JobPlan {
    /// Name of the job.
    pub job: String,
    /// What runs on every shard.
    pub stages: Vec<PlannedStage>,
}

/// One stage of a plan.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct PlannedStage {
    /// Its name, if it was given one.
    pub name: Option<String>,
    /// What a record goes through, from where it comes to where it goes.
    pub steps: Vec<String>,
    /// What is kept by key.
    pub states: Vec<PlannedState>,
    /// Whether what comes in can be read again after a crash.
    pub replayable: bool,
    /// What a sink at its end guarantees.
    pub guarantee: Option<&'static str>,
}

/// One state of a stage.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[non_exhaustive]
pub struct PlannedState {
    /// Its name.
    pub name: String,
    /// What its keys mean.
    pub key: Schema,
    /// What its values mean.
    pub value: Schema,
}

impl Job {
    /// What will run, as data: [`explain`](Self::explain) says the same in text.
    pub fn plan(&self) -> JobPlan {
        let stages = &self.0.stages;
        let replayable = stages.iter().all(|stage| stage.plan.replayable());
        let stages = stages.iter().map(|stage| {
            let plan = &stage.plan;
            let mut steps = vec![plan.describe_head()];
            steps.extend(plan.describe_chain().into_iter().map(str::to_owned));
            steps.push(plan.describe_output());
            let state = |StateSchema { name, key, value }| PlannedState { name, key, value };
            PlannedStage {
                name: stage.name.clone(),
                steps,
                states: plan.states().into_iter().map(state).collect(),
                replayable: plan.replayable(),
                guarantee: plan.sink().map(|guarantee| match guarantee {
                    Guarantee::ExactlyOnce if replayable => "exactly-once",
                    Guarantee::ExactlyOnce => "at-most-once for what a source cannot replay, otherwise exactly-once",
                    Guarantee::AtLeastOnce => "at-least-once: results of a replayed epoch appear again",
                    Guarantee::Volatile => "nothing is kept",
                }),
            }
        });
        JobPlan { job: self.0.name.clone(), stages: stages.collect() }
    }

    /// What will run: stages, exchanges, state names and types, and what each sink guarantees.
    pub fn explain(&self) -> String {
        self.plan().to_string()
    }
}

impl fmt::Display for JobPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "job {}", self.job)?;
        for (number, stage) in (1..).zip(&self.stages) {
            write!(f, "  stage {number}")?;
            if let Some(name) = &stage.name {
                write!(f, " \"{name}\"")?;
            }
            writeln!(f, ": {}", stage.steps.join(" -> "))?;
            for PlannedState { name, key, value } in &stage.states {
                writeln!(f, "    state \"{name}\": {key} -> {value}")?;
            }
            if !stage.replayable {
                writeln!(f, "    source cannot be replayed: records read since the last epoch are lost in a crash")?;
            }
            if let Some(guarantee) = stage.guarantee {
                writeln!(f, "    sink: {guarantee}")?;
            }
        }
        Ok(())
    }
}
