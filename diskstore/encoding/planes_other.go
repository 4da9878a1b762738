//go:build !amd64

package encoding

func split2Fast(rows, lo, hi, bases []byte, rotate int) int { return 0 }

func merge2Fast(rows, lo, hi, bases []byte, rotate int) int { return 0 }

func putTogetherFast(high, apart []byte) int { return 0 }
