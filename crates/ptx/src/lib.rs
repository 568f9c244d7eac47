//! PTX: a parser, a decoder and a warp-vectorised engine.
