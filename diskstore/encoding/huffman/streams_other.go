//go:build !amd64

package huffman

// Fast tells whether this processor has the instructions that make Decode quicker than the library.
const Fast = false

// rounds decodes nothing: Decode goes code by code.
func (d *Decoder) rounds(stored, plane []byte) {}
