//! Finds the static C++ runtime for the storage engine, so that one binary runs everywhere.
//!
//! The linker prefers `libstdc++.so` where it finds one, which would silently make a static binary
//! dynamic; a directory that holds nothing but `libstdc++.a` settles it.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo:rerun-if-changed=build.rs");
    let features = env::var("CARGO_CFG_TARGET_FEATURE").unwrap_or_default();
    let with_engine = env::var_os("CARGO_FEATURE_ROCKSDB").is_some();
    if !with_engine || !features.split(',').any(|feature| feature == "crt-static") {
        return Ok(());
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let link = out.join("libstdc++.a");
    if link.exists() {
        fs::remove_file(&link)?;
    }
    std::os::unix::fs::symlink(static_runtime()?, &link)?;
    println!("cargo:rustc-link-search=native={}", out.display());
    Ok(())
}

fn static_runtime() -> io::Result<PathBuf> {
    let output = Command::new("c++").arg("-print-file-name=libstdc++.a").output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let path = Path::new(text.trim());
    if path.is_absolute() {
        Ok(path.to_path_buf())
    } else {
        Err(io::Error::new(io::ErrorKind::NotFound, "no libstdc++.a: install g++ (`.ci/install`)"))
    }
}
