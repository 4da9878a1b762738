// Package llamastate reads and writes the files in which llama.cpp's llama-server saves the
// sequence of a slot, and carries rows between such files and pages of package diskstore.
//
// A file holds the tokens of a slot, then the cells and rows of each of the model's caches. A [Shape] is the
// part that all files of one running server have in common: the caches, their layers, types and row sizes.
// [Learn] finds the shape from a small file of the server. [Shape.Open] then accepts a file only if every
// byte of the file is accounted for. A [Builder] writes a file from pages.
//
// llama-server checks the shape of a file and believes everything else. A file with rows of
// other tokens, or of another model, is therefore the caller's to prevent; llama-server also
// meets some malformed files with an abort.
//
// # Format
//
// Numbers are little-endian. u32 counts, i32 positions, tokens and types of ggml.
//
//	u32  magic 0x67677371
//	u32  version: 2 (b10488), 3 (b10760) or 4 (b11434)
//	u32  number of words that follow
//	     words: either the tokens, or
//	         i32 -1, u32 1, u32 n, n tokens, u32 m, m × u32 first token of a medium,
//	         m × (u32 bytes, bytes), zeros up to a whole word
//	     the caches: attention, its window, then the recurrent one, as the model has them
//
// A cache with attention:
//
//	u32  streams; for each: u32 cells, and where that is not 0:
//	     for each cell: i32 position, u32 1, [i32 x, i32 y, from version 3 on i32 token], i32 sequence
//	     u32 whether V is transposed, u32 layers
//	     in version 4: u32 size of K's rotation, u32 size of V's rotation
//	     for each layer: i32 type of K, u64 bytes per row, the rows
//	     for each layer, unless K holds V: the same for V; transposed:
//	         i32 type, u32 bytes per element, u32 elements per row, the columns
//
// Numbers in brackets are there for models with two-dimensional positions. A recurrent cache:
//
//	u32  1: the number of cells
//	     i32 position, u32 0
//	     u32 0, u32 layers of the model
//	     for each recurrent layer: i32 type, u64 bytes, the state of the convolution
//	     for each recurrent layer: i32 type, u64 bytes, the recurrent state
//
// Behind the caches, b11669 has a section of its own where a model has windows or recurrent layers: states of
// earlier positions, each of the last cache or caches alone. It is accounted for, and not read.
//
//	u32  0x504b4353 ("SCKP"), u32 1, u32 checkpoints; for each:
//	     i64 tokens, i32 first position, i32 last position
//	     u64 bytes, the state; the same for a model that drafts; the same for drafting itself
//
// Cells are in the order of the server's memory, and need not be in the order of positions.
// A window holds the cells that the next token may attend to.
package llamastate
