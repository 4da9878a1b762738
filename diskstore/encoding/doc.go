/*
Package encoding makes the rows of one section of a page smaller, and gives the same bytes back.

An ID names an encoding. Zstd finds repeated bytes and skewed ones. Split is for rows of
floating-point numbers: it separates the bytes that hold sign and exponent, which a few values
dominate, from the bytes of the mantissa, which look random, and codes the former with Huffman
codes. A Coder measures a sample of the rows and chooses.

	id, stored := coder.Lossless(rows, encoding.Shape{RowBytes: 2048})
	err := coder.Decode(id, stored, rows)

split.go documents the format of Split. A Decode of hostile bytes writes nothing outside the
given rows, and needs memory for one block.
*/
package encoding
