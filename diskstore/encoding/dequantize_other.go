//go:build !amd64

package encoding

func dequantize8Fast(rows, upper, lower []byte, scales []float32) (units int) { return 0 }

func dequantize4Fast(rows, codes []byte, scales []float32) (units int) { return 0 }

func dequantizeChannelsFast(row, codes []byte, scales, centers []float32) (units int) { return 0 }

func dequantizeRotatedFast(rows, codes []byte, scales, centers []float32) (rotations int) { return 0 }

func widenFast(x []float32, rows []byte) (numbers int) { return 0 }
