package encoding

// plain turns the code of the processor off, until the result is called.
func plain() (again func()) {
	was := useAVX2
	useAVX2 = false
	return func() { useAVX2 = was }
}
