//! Every figure we publish, one command each.
