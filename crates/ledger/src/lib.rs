//! Shared pages of a slice: the grant it may not change, the ledger of what it uses.
