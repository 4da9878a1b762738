package encoding

// plain turns the code of the processor off, until the result is called.
func plain() (again func()) {
	avx2, f16 := useAVX2, useF16
	useAVX2, useF16 = false, false
	return func() { useAVX2, useF16 = avx2, f16 }
}
