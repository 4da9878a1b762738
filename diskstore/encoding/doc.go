/*
Package encoding makes the rows of one section of a page smaller, and gives the same bytes back, or
with a lossy encoding numbers near them.

An ID names an encoding. Zstd finds repeated bytes and skewed ones. Split is for rows of
floating-point numbers: it separates the bytes that hold sign and exponent, which a few values
dominate, from the bytes of the mantissa, which look random, and codes the former with Huffman
codes. A Coder measures a sample of the rows and chooses.

	id, stored := coder.Lossless(rows, encoding.Shape{RowBytes: 2048})
	err := coder.Decode(id, stored, rows)

Q8_0, Q4_0 and Int4 are lossy: they keep 8 or 4 bits of each number of f16 and a scale for some
numbers together, in planes that Huffman codes make smaller. Q8_0 and Q4_0 have the blocks of ggml's
reference quantizers. Int4 tries arrangements on a sample: groups along a row, groups along a
channel, and groups of rotated numbers. A caller asks for them by name:

	stored, err := coder.Lossy(encoding.Q8_0, rows, encoding.Shape{RowBytes: 2048})

docs/page-format.md documents the formats of Split and of the lossy encodings. A Decode of hostile bytes
writes nothing outside the given rows, and needs memory for one block.
*/
package encoding
