//! placeholder
mod f01_keepers_folder;
