package data

import (
	"encoding/json"
	"fmt"
	"image"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"golang.org/x/image/draw"
)

const emojiCommand = "npm pack emoji-datasource-google@16.0.0 && tar xzf emoji-datasource-google-16.0.0.tgz"

// emojiSheets are the sizes of the pictures on the package's sheets. A picture
// has a transparent border of one pixel on each side.
var emojiSheets = [...]int{16, 20, 32, 64}

// maxEmojiFile bounds emoji.json, of which version 16 has 1.3 MB.
const maxEmojiFile = 1 << 26

// emoji is what an entry of emoji.json says about where a picture is. Its
// variations by skin tone are not read: they would double the set with drawings
// that it has, in five other colours.
type emoji struct {
	Name     string `json:"name"`
	SheetX   *int   `json:"sheet_x"` // column
	SheetY   *int   `json:"sheet_y"` // row
	Category string `json:"category"`
	Has      *bool  `json:"has_img_google"`
}

// openEmoji cuts the pictures out of a sheet; what Open says of kind emoji is
// done here.
func openEmoji(o Options) (train, heldOut Dataset, err error) {
	if o.Path == "" {
		return nil, nil, fmt.Errorf("data.path is empty: run `%s` and give the folder that it makes, package", emojiCommand)
	}
	list, err := readEmojiList(filepath.Join(o.Path, "emoji.json"))
	if err != nil {
		return nil, nil, emojiError(o.Path, err)
	}
	size := emojiSheets[len(emojiSheets)-1]
	for _, s := range slices.Backward(emojiSheets[:]) {
		if s >= o.ImageSize {
			size = s
		}
	}
	sheet, err := readEmojiSheet(filepath.Join(o.Path, "img", "google", "sheets", fmt.Sprintf("%d.png", size)), size)
	if err != nil {
		return nil, nil, emojiError(o.Path, err)
	}
	if list, err = ofCategory(list, o.Category); err != nil {
		return nil, nil, err
	}
	tiles, categories, err := cutEmoji(sheet, list, size)
	if err != nil {
		return nil, nil, emojiError(o.Path, err)
	}
	if len(tiles) < 2 {
		return nil, nil, emojiError(o.Path, fmt.Errorf("%d distinct pictures: at least 2 are needed, one to train on and one to hold out", len(tiles)))
	}
	names := slices.Compact(slices.Sorted(slices.Values(categories)))
	tr, out, place := split(o, len(tiles))
	for i, tile := range tiles {
		set, k := place(i)
		set.labels[k] = slices.Index(names, categories[i])
		planes(set.picture(k), fit(tile, o.ImageSize), o.Channels)
	}
	return tr, out, nil
}

// emojiError says whose files an error is about and how to get them.
func emojiError(path string, err error) error {
	return fmt.Errorf("data.path = %q: %w: run `%s` and give the folder that it makes, package", path, err, emojiCommand)
}

func readEmojiList(path string) ([]emoji, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if info.Size() > maxEmojiFile {
		return nil, fmt.Errorf("%s has %d bytes, at most %d can be read", path, info.Size(), maxEmojiFile)
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var list []emoji
	if err := json.Unmarshal(raw, &list); err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	for i, e := range list {
		if e.SheetX == nil || e.SheetY == nil || e.Category == "" || e.Has == nil {
			return nil, fmt.Errorf("%s: entry %d (%q) lacks one of sheet_x, sheet_y, category, has_img_google", path, i, e.Name)
		}
	}
	return list, nil
}

// readEmojiSheet decodes a sheet and puts it on white.
func readEmojiSheet(path string, size int) (*image.RGBA, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() // read only: nothing can be lost
	head, err := checkPicture(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if cell := size + 2; head.Width%cell != 0 || head.Height%cell != 0 {
		return nil, fmt.Errorf("%s: %dx%d pixels are not a grid of cells of %dx%[4]d", path, head.Width, head.Height, cell)
	}
	img, _, err := image.Decode(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return onWhite(img, img.Bounds()), nil
}

// ofCategory returns the entries of one category, or all of them for "".
func ofCategory(list []emoji, category string) ([]emoji, error) {
	if category == "" {
		return list, nil
	}
	var kept []emoji
	names := map[string]bool{}
	for _, e := range list {
		names[e.Category] = true
		if e.Category == category {
			kept = append(kept, e)
		}
	}
	if len(kept) == 0 {
		return nil, fmt.Errorf("data.category = %q: emoji.json has no such category; allowed are %q, or empty for all", category, slices.Sorted(maps.Keys(names)))
	}
	return kept, nil
}

// cutEmoji returns the distinct pictures of a sheet and their categories, in
// order of the list.
func cutEmoji(sheet *image.RGBA, list []emoji, size int) (tiles []*image.RGBA, categories []string, err error) {
	cell := size + 2
	columns, rows := sheet.Rect.Dx()/cell, sheet.Rect.Dy()/cell
	seen := map[string]bool{}
	for i, e := range list {
		if !*e.Has {
			continue
		}
		x, y := *e.SheetX, *e.SheetY
		if x < 0 || x >= columns || y < 0 || y >= rows {
			return nil, nil, fmt.Errorf("emoji.json: entry %d (%q) is at sheet_x = %d, sheet_y = %d of a sheet of %dx%d pictures", i, e.Name, x, y, columns, rows)
		}
		tile := image.NewRGBA(image.Rect(0, 0, size, size))
		draw.Draw(tile, tile.Rect, sheet, image.Pt(cell*x+1, cell*y+1), draw.Src)
		if seen[string(tile.Pix)] {
			continue
		}
		seen[string(tile.Pix)] = true
		tiles, categories = append(tiles, tile), append(categories, e.Category)
	}
	return tiles, categories, nil
}
