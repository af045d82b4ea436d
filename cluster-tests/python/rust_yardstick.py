"""Measures Ephemeris with the emulator tests that Microsoft's Rust SDK for Cosmos DB ships itself.

The crate is downloaded from crates.io, unchanged, into a directory outside the checkout, and built
there with its own lock file. Each test is a process of its own, as some change the environment.
What fails is compared with rust_yardstick_expected.toml, as yardstick.py does. A test that says that
it skips itself, though it ends well, counts as skipped.
"""

import hashlib
import os
import subprocess
import sys
import tarfile
import tomllib
import urllib.request
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

from yardstick import HERE, argument_parser, first_line, report

CRATE = "azure_data_cosmos-1.0.0"
CRATE_URL = f"https://static.crates.io/crates/azure_data_cosmos/{CRATE}.crate"
CRATE_SHA256 = "aa75d1999be85b351fb1ace2f48d8df5f13c428fb3c437e0c97214ef2c9a7e9b"
FEATURES = "key_auth,control_plane,fault_injection,unstable_patch"
# Tests of the tests' own helpers: they ask no node for anything.
WITHOUT_NODE = (
    "::tests::|::recreation_signal_|::unordered_query_results_|::precomputed_vector_fixture"
)

NEXTEST = """\
[profile.default]
fail-fast = false
slow-timeout = { period = "60s", terminate-after = 2 }

[profile.default.junit]
path = "results.xml"
store-success-output = true
"""


def main():
    options = argument_parser(__doc__).parse_args()
    home = prepare(options.cache)
    expected = tomllib.loads((HERE / "rust_yardstick_expected.toml").read_text())
    code = run(home, options)
    results, seconds = read_results(home)
    # To nextest, 100 is a test that fails.
    ended = {file: (0 if code in (0, 100) else code, seconds[file]) for file in results}
    return report(results, ended, expected, options)


def prepare(cache):
    """Unpacks the crate; does nothing if that is done."""
    home = Path(cache) / "rust-yardstick"
    if not (home / CRATE).is_dir():
        home.mkdir(parents=True, exist_ok=True)
        archive = home / f"{CRATE}.crate"
        urllib.request.urlretrieve(CRATE_URL, archive)
        digest = hashlib.sha256(archive.read_bytes()).hexdigest()
        if digest != CRATE_SHA256:
            sys.exit(f"{archive} is not the published file: its SHA-256 is {digest}")
        with tarfile.open(archive) as tar:
            tar.extractall(home, filter="data")
    (home / "nextest.toml").write_text(NEXTEST)
    return home


def run(home, options):
    results_file(home).unlink(missing_ok=True)
    environment = dict(
        os.environ,
        AZURE_COSMOS_CONNECTION_STRING=f"AccountEndpoint={options.url};AccountKey={options.key};",
        AZURE_COSMOS_TEST_MODE="required",
        CARGO_PROFILE_DEV_DEBUG="0",
        CARGO_TARGET_DIR=str(home / "target"),
        RUSTFLAGS='--cfg test_category="emulator"',
    )
    command = ["cargo", "nextest", "run", "--locked", "--config-file", str(home / "nextest.toml")]
    command += ["--test", "emulator", "--features", FEATURES]
    wanted = f"test(/^emulator_tests::cosmos_.*{options.select}/)"
    command += ["-E", f"{wanted} - test(/{WITHOUT_NODE}/)"]
    return subprocess.run(command, cwd=home / CRATE, env=environment, check=False).returncode


def results_file(home):
    return home / CRATE / "target/nextest/default/results.xml"


def read_results(home):
    """Maps each module to its tests, and each test to (outcome, message); and to its seconds."""
    if not results_file(home).is_file():
        sys.exit("the tests did not run")
    results, seconds = {}, Counter()
    for case in ElementTree.parse(results_file(home)).iter("testcase"):
        _, module, name = case.get("name").split("::", 2)
        results.setdefault(module, {})[name] = outcome(case)
        seconds[module] += float(case.get("time"))
    return dict(sorted(results.items())), seconds


def outcome(case):
    """Whether a test passed, and else why not."""
    said = f"{case.findtext('system-out') or ''}\n{case.findtext('system-err') or ''}".splitlines()
    failure = case.find("failure")
    if failure is not None:
        errors = [line for line in said if line.startswith("Error:")]
        return "failed", first_line(errors[-1] if errors else failure.text or "")
    skips = [line for line in said if line.lower().startswith("skipping")]
    return ("skipped", first_line(skips[0])) if skips else ("passed", "")


if __name__ == "__main__":
    sys.exit(main())
