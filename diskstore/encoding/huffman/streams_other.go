//go:build !amd64

package huffman

// Fast tells whether Decode is quicker than the library.
const Fast = false

// rounds decodes nothing: Decode goes code by code.
func (d *Decoder) rounds(stored, plane []byte) {}
