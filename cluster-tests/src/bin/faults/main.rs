//! Fault tests: real nodes, broken in many ways while clients work, and a checker that judges every
//! answer.
//!
//! 1. A cluster is started: processes, with a proxy on every link between them, or containers.
//! 2. Clients do what their `workload` says; every answer is remembered.
//! 3. A `nemesis` kills, pauses and separates nodes, one fault after the other.
//! 4. All is put right. Within ten seconds every request must be answered again.
//! 5. Everything is read once more, and all that was seen is judged.
//! 6. `report` writes results, histories and pictures to a directory of the run's own.

mod arguments;
mod end_state;
mod hand;
mod nemesis;
mod report;
mod run;
mod settings;
mod sometimes;
mod workload;

use std::process::ExitCode;

use anyhow::bail;
use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

use arguments::{Arguments, Plan};

fn main() -> ExitCode {
    let plan = Plan::of(Arguments::parse());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let outcome = runtime.block_on(until_interrupted(run::all(&plan)));
        // Whoever interrupts a judge does not wait for the verdict.
        runtime.shutdown_background();
        outcome
    });
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("faults: the harness failed: {error:#}");
            ExitCode::from(2)
        }
    }
}

/// What is under way is dropped at a signal, and so are the nodes it has started.
async fn until_interrupted(
    run: impl Future<Output = anyhow::Result<bool>>,
) -> anyhow::Result<bool> {
    let (mut terminated, mut hung_up) =
        (signal(SignalKind::terminate())?, signal(SignalKind::hangup())?);
    tokio::select! {
        outcome = run => outcome,
        _ = tokio::signal::ctrl_c() => bail!("interrupted"),
        _ = terminated.recv() => bail!("terminated"),
        _ = hung_up.recv() => bail!("hung up"),
    }
}
