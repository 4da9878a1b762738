package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"

	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// pngDPI makes a PNG sharp on a dense screen.
const pngDPI = 192

// An SVG names its fonts. Arial and Helvetica are as wide as Liberation Sans, so
// that the picture looks the same where that is not installed.
const (
	svgFont      = "font-family:Liberation Sans;"
	svgFontStack = "font-family:Liberation Sans,Arial,Helvetica,sans-serif;"
)

// write draws a report into a file, whose ending chooses the format.
func write(path string, r *report) error {
	var canvas vg.CanvasWriterTo
	switch filepath.Ext(path) {
	case ".svg":
		canvas = vgsvg.New(width, height)
	case ".png":
		canvas = vgimg.PngCanvas{Canvas: vgimg.NewWith(vgimg.UseWH(width, height), vgimg.UseDPI(pngDPI))}
	default:
		return fmt.Errorf("drawing %s: only .svg and .png are known", path)
	}
	if err := paint(draw.New(canvas), r); err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return fmt.Errorf("drawing %s: %w", path, err)
	}
	picture := bytes.ReplaceAll(out.Bytes(), []byte(svgFont), []byte(svgFontStack))
	if err := os.WriteFile(path, picture, 0o644); err != nil {
		return fmt.Errorf("writing the picture: %w", err)
	}
	return nil
}
