package vfs

// onlyWalk makes Below work without openat2 until the result is called.
func onlyWalk() func() {
	before := noOpenat2.Swap(true)
	return func() { noOpenat2.Store(before) }
}
