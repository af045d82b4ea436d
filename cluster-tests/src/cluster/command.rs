//! Running other programs to their end.

use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail};

/// Runs a program; what it says.
pub(super) fn run(command: &mut Command) -> anyhow::Result<String> {
    run_with(command, "")
}

/// Runs a program that reads something.
pub(super) fn run_with(command: &mut Command, input: &str) -> anyhow::Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    // A SIGINT from the terminal is for us, who end what was started with programs like this one.
    command.process_group(0);
    let mut child = command.spawn().with_context(|| format!("{name} cannot be run"))?;
    let mut stdin = child.stdin.take().context("there is no pipe")?;
    stdin.write_all(input.as_bytes()).with_context(|| format!("{name} does not read"))?;
    drop(stdin);
    let output = child.wait_with_output()?;
    if !output.status.success() {
        bail!("{name}: {}", String::from_utf8_lossy(&output.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
