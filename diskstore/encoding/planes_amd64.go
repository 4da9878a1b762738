package encoding

import "golang.org/x/sys/cpu"

// useAVX2 is false on processors without it, and in tests of the plain code.
var useAVX2 = cpu.X86.HasAVX2

// inVectors returns how many of the first n numbers of a row fill vectors.
func inVectors(n int) int {
	if !useAVX2 {
		return 0
	}
	return n &^ 31
}

// split2Fast does as split2 for a first part of a row, and returns the number of numbers done.
func split2Fast(rows, lo, hi, bases []byte, rotate int) int {
	n := inVectors(len(lo))
	if n > 0 {
		split2AVX2(&rows[0], &lo[0], &hi[0], &bases[0], n, rotate)
	}
	return n
}

// merge2Fast does as merge2 for a first part of a row, and returns the number of numbers done.
func merge2Fast(rows, lo, hi, bases []byte, rotate int) int {
	n := inVectors(len(lo))
	if n > 0 {
		merge2AVX2(&rows[0], &lo[0], &hi[0], &bases[0], n, rotate)
	}
	return n
}

// putTogetherFast does as putTogether for a first part of high, and returns its size.
func putTogetherFast(high, apart []byte) int {
	n := inVectors(len(high))
	if n > 0 {
		putTogetherAVX2(&high[0], &apart[0], n)
	}
	return n
}

// n is a multiple of 32. planes_amd64.s has all.
//
//go:noescape
func split2AVX2(rows, lo, hi, bases *byte, n, rotate int)

//go:noescape
func merge2AVX2(rows, lo, hi, bases *byte, n, rotate int)

//go:noescape
func putTogetherAVX2(high, apart *byte, n int)
