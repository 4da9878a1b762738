package encoding

// plain turns the code of the processor off, until the result is called.
func plain() (again func()) {
	avx2, f16, ours := useAVX2, useF16, useHuffman
	useAVX2, useF16, useHuffman = false, false, false
	return func() { useAVX2, useF16, useHuffman = avx2, f16, ours }
}
